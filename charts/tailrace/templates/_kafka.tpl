{{/* How a pipeline reaches Kafka: the cluster's name, its certificates, the section `kafka` of the configuration. */}}

{{- define "tailrace.kafka.cluster" -}}
{{- default (printf "%s-kafka" (include "tailrace.fullname" .)) .Values.kafka.strimzi.cluster -}}
{{- end -}}

{{/* Whether pods mount Kafka certificates. */}}
{{- define "tailrace.kafka.mounts" -}}
{{- $external := .Values.kafka.external -}}
{{- if or (eq .Values.kafka.mode "strimzi") $external.ca.secret $external.client.secret -}}yes{{- end -}}
{{- end -}}

{{/* Both Secrets, item by item: Strimzi's Secret of a user also has a ca.crt, but a different one. */}}
{{- define "tailrace.kafka.volume" -}}
{{- $external := .root.Values.kafka.external -}}
- name: kafka
  projected:
    defaultMode: 0440
    sources:
      {{- if eq .root.Values.kafka.mode "strimzi" }}
      - secret:
          name: {{ include "tailrace.kafka.cluster" .root }}-cluster-ca-cert
          items: [{key: ca.crt, path: ca.crt}]
      - secret:
          name: {{ include "tailrace.pipeline.fullname" . | quote }}
          items: [{key: user.crt, path: user.crt}, {key: user.key, path: user.key}]
      {{- else }}
      {{- with $external.ca.secret }}
      - secret:
          name: {{ . | quote }}
          items: [{key: {{ $external.ca.key | quote }}, path: ca.crt}]
      {{- end }}
      {{- with $external.client.secret }}
      - secret:
          name: {{ . | quote }}
          items: [{key: {{ $external.client.certificate | quote }}, path: user.crt}, {key: {{ $external.client.key | quote }}, path: user.key}]
      {{- end }}
      {{- end }}
{{- end -}}

{{/* The section `kafka` of a pipeline's configuration. */}}
{{- define "tailrace.kafka.section" -}}
{{- $kafka := .Values.kafka -}}
{{- $files := dict "ssl.ca.location" "/etc/tailrace/kafka/ca.crt" -}}
{{- $user := dict "ssl.certificate.location" "/etc/tailrace/kafka/user.crt" "ssl.key.location" "/etc/tailrace/kafka/user.key" -}}
{{- if eq $kafka.mode "strimzi" -}}
bootstrap.servers: {{ printf "%s-kafka-bootstrap.%s.svc:9093" (include "tailrace.kafka.cluster" .) .Release.Namespace }}
options:
  {{- toYaml (merge (dict "security.protocol" "SSL") $files $user) | nindent 2 }}
{{- else -}}
{{- $options := deepCopy $kafka.external.options -}}
{{- if $kafka.external.ca.secret -}}{{- $options = mergeOverwrite $options $files -}}{{- end -}}
{{- if $kafka.external.client.secret -}}{{- $options = mergeOverwrite $options $user -}}{{- end -}}
{{- if $kafka.external.sasl.secret -}}
{{- $options = mergeOverwrite $options (dict "sasl.username" "${KAFKA_USERNAME}" "sasl.password" "${KAFKA_PASSWORD}") -}}
{{- end -}}
bootstrap.servers: {{ $kafka.external.bootstrapServers | quote }}
{{- with $options }}
options:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}
