{{/* Names, labels and the parts that several templates share. A pipeline's parts take (dict "root" $ "p" $p). */}}

{{/* A release may have a dot in its name, a Service may not; and a StatefulSet's revision has to fit into a label. */}}
{{- define "tailrace.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | replace "." "-" | trunc 39 | trimSuffix "-" -}}
{{- end -}}

{{- define "tailrace.labels" -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" -}}
{{- $version := dict "app.kubernetes.io/version" .Chart.AppVersion "helm.sh/chart" $chart -}}
{{- toYaml (mergeOverwrite (include "tailrace.labels.lasting" . | fromYaml) $version) -}}
{{- end -}}

{{/* Those that no other version of the chart changes: for pods, and for what Strimzi hands on to its pods. */}}
{{- define "tailrace.labels.lasting" -}}
{{- $own := dict
  "app.kubernetes.io/name" "tailrace"
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "tailrace"
-}}
{{- toYaml (mergeOverwrite (deepCopy .Values.commonLabels) $own) -}}
{{- end -}}

{{/* Of a pipeline's pods. */}}
{{- define "tailrace.labels.pod" -}}
{{- $own := mergeOverwrite (include "tailrace.labels.lasting" .root | fromYaml) (include "tailrace.selector" . | fromYaml) -}}
{{- toYaml (mergeOverwrite (deepCopy .p.podLabels) $own (dict "app.kubernetes.io/component" .component)) -}}
{{- end -}}

{{/* What selects the pods of a kind; the release is in a label of ours, since Strimzi gives its pods the usual ones. */}}
{{- define "tailrace.selector" -}}
tailrace.dev/release: {{ .root.Release.Name | quote }}
tailrace.dev/component: {{ .component }}
{{- with .p }}
tailrace.dev/pipeline: {{ .name | quote }}
{{- end }}
{{- end -}}

{{/* A pipeline with its defaults, as JSON. */}}
{{- define "tailrace.pipeline" -}}
{{- mergeOverwrite (deepCopy .root.Values.pipelineDefaults) (deepCopy .p) | toJson -}}
{{- end -}}

{{- define "tailrace.pipeline.fullname" -}}
{{- printf "%s-%s" (include "tailrace.fullname" .root) .p.name -}}
{{- end -}}

{{- define "tailrace.image" -}}
{{- $own := default dict .own -}}
{{- printf "%s:%s" (default .image.repository $own.repository) (default .root.Chart.AppVersion (default .image.tag $own.tag)) -}}
{{- end -}}

{{- define "tailrace.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The restricted Pod Security Standard, and a root file system that nobody writes to. */}}
{{- define "tailrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int .Values.podSecurity.runAsUser }}
runAsGroup: {{ int .Values.podSecurity.runAsGroup }}
fsGroup: {{ int .Values.podSecurity.fsGroup }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tailrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "tailrace.placement" -}}
{{- with .p.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .p.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .p.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with get .p.priorityClassName .component }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- if .p.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range .p.topologySpreadConstraints }}
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "tailrace.selector" $ | fromYaml)) }}
  - {{- toYaml (merge (deepCopy .) $own) | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "tailrace.kafka.cluster" -}}
{{- default (printf "%s-kafka" (include "tailrace.fullname" .)) .Values.kafka.strimzi.cluster -}}
{{- end -}}

{{/* Whether pods mount certificates of Kafka's. */}}
{{- define "tailrace.kafka.mounts" -}}
{{- $external := .Values.kafka.external -}}
{{- if or (eq .Values.kafka.mode "strimzi") $external.ca.secret $external.client.secret -}}yes{{- end -}}
{{- end -}}

{{/* Both Secrets, item by item: Strimzi's Secret of a user has a ca.crt too, which is another one. */}}
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
          name: {{ include "tailrace.pipeline.fullname" . }}
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

{{/* Settings of Spark's with which other objects have to agree, as JSON; config.spark may not say them again. */}}
{{- define "tailrace.spark" -}}
{{- $root := .root -}}
{{- $p := .p -}}
{{- $executors := $p.executors -}}
{{- $spark := dict
  "spark.master" "k8s://https://kubernetes.default.svc"
  "spark.driver.memory" $p.driver.memory
  "spark.driver.port" (toString (int $root.Values.ports.driver))
  "spark.driver.blockManager.port" (toString (int $root.Values.ports.blockManager))
  "spark.blockManager.port" (toString (int $root.Values.ports.blockManager))
  "spark.ui.port" (toString (int $root.Values.ports.ui))
  "spark.local.dir" "/run/tailrace/scratch"
  "spark.executor.instances" (toString (int $executors.instances))
  "spark.executor.cores" (toString (int $executors.cores))
  "spark.executor.memory" $executors.memory
  "spark.executor.memoryOverhead" $executors.memoryOverhead
  "spark.kubernetes.executor.request.cores" (toString $executors.cpu.request)
  "spark.kubernetes.executor.podTemplateFile" "/etc/tailrace/pipeline/executor.yaml"
  "spark.kubernetes.executor.podTemplateContainerName" "executor"
  "spark.kubernetes.container.image" (include "tailrace.image" (dict "root" $root "image" $root.Values.images.executor "own" $p.image.executor))
  "spark.kubernetes.container.image.pullPolicy" $root.Values.images.pullPolicy
  "spark.kubernetes.authenticate.executor.serviceAccountName" (printf "%s-executor" (include "tailrace.pipeline.fullname" .))
-}}
{{- with $executors.cpu.limit }}{{- $_ := set $spark "spark.kubernetes.executor.limit.cores" (toString .) }}{{- end -}}
{{- if $root.Values.images.pullSecrets }}{{- $_ := set $spark "spark.kubernetes.container.image.pullSecrets" (join "," $root.Values.images.pullSecrets) }}{{- end -}}
{{- $storage := $root.Values.objectStorage -}}
{{- if eq $storage.mode "embedded" }}{{- $_ := set $spark "spark.hadoop.fs.s3a.endpoint" (printf "http://%s-object-store.%s.svc:9000" (include "tailrace.fullname" $root) $root.Release.Namespace) }}{{- end -}}
{{- if eq $storage.mode "external" -}}
{{- with $storage.external.endpoint }}{{- $_ := set $spark "spark.hadoop.fs.s3a.endpoint" . }}{{- end -}}
{{- with $storage.external.region }}{{- $_ := set $spark "spark.hadoop.fs.s3a.endpoint.region" . }}{{- end -}}
{{- end -}}
{{- toJson $spark -}}
{{- end -}}

{{/* What a pipeline's configuration file says. */}}
{{- define "tailrace.config" -}}
{{- $root := .root -}}
{{- $p := .p -}}
{{- $made := dict
  "pipeline" $p.name
  "kafka" (include "tailrace.kafka.section" $root | fromYaml)
  "ledger" (dict "topic" $root.Values.kafka.ledger.topic "partitions" (int $root.Values.kafka.ledger.partitions))
  "spark" (include "tailrace.spark" . | fromJson)
-}}
{{- $http := $root.Values.http -}}
{{- $metrics := ternary (dict "enabled" true "host" "0.0.0.0" "port" (int $http.port) "writers" (int $http.executorPort)) (dict "enabled" false) $http.enabled -}}
{{- $_ := set $made "metrics" $metrics -}}
{{- toYaml (mergeOverwrite $made (deepCopy $p.config)) -}}
{{- end -}}

{{/* Whether a pipeline keeps state on the object store. */}}
{{- define "tailrace.stateful" -}}
{{- if hasPrefix "s3a:" (default "" .p.config.checkpoint) -}}yes{{- end -}}
{{- end -}}

{{/* Variables of driver and executors. */}}
{{- define "tailrace.env" -}}
{{- $storage := .root.Values.objectStorage -}}
{{- if include "tailrace.stateful" . }}
{{- $secret := ternary (default (printf "%s-object-store" (include "tailrace.fullname" .root)) $storage.embedded.secret) $storage.external.secret (eq $storage.mode "embedded") -}}
{{- with $secret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ ternary "access-key" $storage.external.accessKey (eq $storage.mode "embedded") | quote }}}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ ternary "secret-key" $storage.external.secretKey (eq $storage.mode "embedded") | quote }}}}
{{- end }}
{{- end }}
{{- with .root.Values.kafka.external }}
{{- if and (eq $.root.Values.kafka.mode "external") .sasl.secret }}
- name: KAFKA_USERNAME
  valueFrom: {secretKeyRef: {name: {{ .sasl.secret | quote }}, key: {{ .sasl.username | quote }}}}
- name: KAFKA_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ .sasl.secret | quote }}, key: {{ .sasl.password | quote }}}}
{{- end }}
{{- end }}
{{- range $name, $from := .p.secretEnv }}
- name: {{ $name }}
  valueFrom: {secretKeyRef: {name: {{ $from.secret | quote }}, key: {{ $from.key | quote }}}}
{{- end }}
{{- range $name, $value := .p.env }}
- name: {{ $name }}
  # A number as it was written: Go would say 5e+06.
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end -}}

{{/* Who the driver is: its own pod, which its executors reach and belong to. */}}
{{- define "tailrace.identity" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- end -}}

{{/* Seconds that a driver's pod may take to leave. */}}
{{- define "tailrace.grace" -}}
{{- $batch := default dict .p.config.batch -}}
{{- $drain := ternary $batch.drain 120 (hasKey $batch "drain") -}}
{{- add (ceil $drain) (int .p.graceSeconds) -}}
{{- end -}}

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
# The pods' identity comes from an agent on their node.
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

{{/* These ports, or else those of the addresses: host:port or a URL. */}}
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

{{/* How many bytes: 512m as Java says it, 512Mi or 512M as Kubernetes does. */}}
{{- define "tailrace.bytes" -}}
{{- $said := toString . -}}
{{- $number := regexFind "^[0-9.]+" $said | float64 -}}
{{- $unit := trimPrefix (regexFind "^[0-9.]+" $said) $said -}}
{{- $units := dict "" 1 "k" 1024 "m" 1048576 "g" 1073741824 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "K" 1024 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- printf "%.0f" (mulf $number (default 1 (get $units $unit))) -}}
{{- end -}}
