{{/* Egress rules. */}}

{{- define "tailrace.dns" -}}
- to: {{ toYaml .Values.networkPolicy.dns | nindent 4 }}
  ports:
    {{- range .Values.networkPolicy.dnsPorts }}
    - {protocol: UDP, port: {{ int . }}}
    - {protocol: TCP, port: {{ int . }}}
    {{- end }}
{{- end -}}

{{/* What a pipeline's drivers and executors may reach outside the release. */}}
{{- define "tailrace.outside" -}}
{{ include "tailrace.dns" .root }}
{{- $kafka := .root.Values.kafka }}
{{- if eq $kafka.mode "strimzi" }}
- to:
    - podSelector:
        matchLabels:
          strimzi.io/cluster: {{ include "tailrace.kafka.cluster" .root }}
          strimzi.io/kind: Kafka
  ports: [{protocol: TCP, port: 9093}]
{{- else }}
{{ include "tailrace.reach" (dict "reach" $kafka.external.network "addresses" (splitList "," $kafka.external.bootstrapServers)) }}
{{- end }}
{{- if include "tailrace.stateful" . }}
{{- $storage := .root.Values.objectStorage }}
{{- if eq $storage.mode "external" }}
{{ include "tailrace.reach" (dict "reach" $storage.external.network "addresses" (list (default "https://" $storage.external.endpoint))) }}
{{- if not $storage.external.secret }}
# Pods get their identity from an agent on their node.
- ports: [{protocol: TCP, port: 80}]
  to: [{ipBlock: {cidr: 169.254.0.0/16}}]
{{- end }}
{{- else }}
- to:
    - podSelector:
        matchLabels: {{- include "tailrace.selector" (dict "root" .root "component" "object-store") | nindent 10 }}
  ports: [{protocol: TCP, port: 9000}]
{{- end }}
{{- end }}
{{- $registries := list }}
{{- range $part := list .p.config.source .p.config.sink }}
{{- with (default dict (default dict $part).registry).url }}{{- $registries = append $registries . }}{{- end }}
{{- end }}
{{- with $registries }}
{{ include "tailrace.reach" (dict "reach" (dict "ports" list "to" list) "addresses" .) }}
{{- end }}
{{- with .root.Values.networkPolicy.egress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The given ports, or else those of the addresses: host:port or a URL. */}}
{{- define "tailrace.reach" -}}
{{- $ports := .reach.ports -}}
{{- if not $ports -}}
{{- range .addresses -}}
{{- $said := regexFind ":[0-9]+$" (regexReplaceAll "^(https?://[^/]*).*$" . "${1}") | trimPrefix ":" -}}
{{- $ports = append $ports (int (default (ternary 80 443 (hasPrefix "http://" .)) $said)) -}}
{{- end -}}
{{- end -}}
- ports:
    {{- range uniq $ports }}
    - {protocol: TCP, port: {{ int . }}}
    {{- end }}
  {{- with .reach.to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Who may ask a driver, as JSON: Prometheus, and those of http.from. */}}
{{- define "tailrace.askers" -}}
{{- $peers := list -}}
{{- if .Values.http.enabled -}}
{{- $peers = .Values.http.from -}}
{{- if .Values.monitoring.enabled }}{{ $peers = concat $peers .Values.monitoring.from }}{{ end -}}
{{- end -}}
{{- toJson $peers -}}
{{- end -}}
