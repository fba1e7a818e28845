{{/* A pipeline's configuration: the configuration file, Spark's settings, variables. */}}

{{/* Spark settings that other objects have to agree with, as JSON; config.spark may not set them again. */}}
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

{{/* A pipeline's configuration file. */}}
{{- define "tailrace.config" -}}
{{- $root := .root -}}
{{- $p := .p -}}
{{- /* An executor that is silent for longer has lost its node; Spark's own limit is two minutes. */}}
{{- $lost := dict "spark.network.timeout" "25s" "spark.network.timeoutInterval" "5s" "spark.executor.heartbeatInterval" "5s" -}}
{{- /* Spark's watch takes no notice of a pod that is deleted at once, and by default its next look is 30 s away. */}}
{{- $_ := set $lost "spark.kubernetes.executor.apiPollingInterval" "5s" -}}
{{- $made := dict
  "pipeline" $p.name
  "kafka" (include "tailrace.kafka.section" $root | fromYaml)
  "ledger" (dict "topic" $root.Values.kafka.ledger.topic "partitions" (int $root.Values.kafka.ledger.partitions))
  "spark" (merge (omit (include "tailrace.spark" . | fromJson) "spark.executor.instances") $lost)
  "executors" (dict "file" "/etc/tailrace/live/executors")
-}}
{{- $http := $root.Values.http -}}
{{- $metrics := ternary (dict "enabled" true "host" $http.host "port" (int $http.port) "gateways" (int $http.executorPort)) (dict "enabled" false) $http.enabled -}}
{{- if and $http.enabled (hasPrefix "http" $root.Values.monitoring.runbooks) }}{{- $_ := set $metrics "runbooks" $root.Values.monitoring.runbooks }}{{- end -}}
{{- $_ := set $made "metrics" $metrics -}}
{{- toYaml (mergeOverwrite $made (deepCopy $p.config)) -}}
{{- end -}}

{{/* Whether a pipeline keeps state on the object store. */}}
{{- define "tailrace.stateful" -}}
{{- if hasPrefix "s3a:" (default "" .p.config.checkpoint) -}}yes{{- end -}}
{{- end -}}

{{/* Variables that come from Secrets, with the Secret and the key of each, as JSON. */}}
{{- define "tailrace.secrets" -}}
{{- $storage := .root.Values.objectStorage -}}
{{- $found := dict -}}
{{- if include "tailrace.stateful" . -}}
{{- $embedded := eq $storage.mode "embedded" -}}
{{- $secret := ternary (default (printf "%s-object-store" (include "tailrace.fullname" .root)) $storage.embedded.secret) $storage.external.secret $embedded -}}
{{- with $secret -}}
{{- $_ := set $found "AWS_ACCESS_KEY_ID" (dict "secret" . "key" (ternary "access-key" $storage.external.accessKey $embedded)) -}}
{{- $_ := set $found "AWS_SECRET_ACCESS_KEY" (dict "secret" . "key" (ternary "secret-key" $storage.external.secretKey $embedded)) -}}
{{- end -}}
{{- end -}}
{{- with .root.Values.kafka.external.sasl -}}
{{- if and (eq $.root.Values.kafka.mode "external") .secret -}}
{{- $_ := set $found "KAFKA_USERNAME" (dict "secret" .secret "key" .username) -}}
{{- $_ := set $found "KAFKA_PASSWORD" (dict "secret" .secret "key" .password) -}}
{{- end -}}
{{- end -}}
{{- toJson (mergeOverwrite $found (deepCopy .p.secretEnv)) -}}
{{- end -}}

{{/* Variables of driver or executors. */}}
{{- define "tailrace.env" -}}
{{- range $name, $from := include "tailrace.secrets" . | fromJson }}
- name: {{ $name | quote }}
  valueFrom: {secretKeyRef: {name: {{ $from.secret | quote }}, key: {{ $from.key | quote }}}}
{{- end }}
{{- range $name, $value := (include "tailrace.role" . | fromJson).env }}
- name: {{ $name | quote }}
  # A number as it was written: Go would write 5e+06.
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end -}}

{{/* The same Secrets as files, by variable. Nothing reads them: the driver notices when one changes. */}}
{{- define "tailrace.secrets.volume" -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range $name, $from := include "tailrace.secrets" . | fromJson }}
      - secret:
          name: {{ $from.secret | quote }}
          items: [{key: {{ $from.key | quote }}, path: {{ $name }}}]
      {{- end }}
{{- end -}}

{{/* The driver's identity: its own pod, which its executors connect to and are owned by. */}}
{{- define "tailrace.identity" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- end -}}

{{/* Seconds that a driver's pod may take to end. */}}
{{- define "tailrace.grace" -}}
{{- $batch := default dict .p.config.batch -}}
{{- $drain := ternary $batch.drain 120 (hasKey $batch "drain") -}}
{{- add (ceil $drain) (int .p.graceSeconds) (ternary (int .p.successorSeconds) 0 (eq .p.upgrade "hand-over")) -}}
{{- end -}}

{{/* A size in bytes: 512m as Java writes it, 512Mi or 512M as Kubernetes does. */}}
{{- define "tailrace.bytes" -}}
{{- $said := toString . -}}
{{- $number := regexFind "^[0-9.]+" $said | float64 -}}
{{- $unit := trimPrefix (regexFind "^[0-9.]+" $said) $said -}}
{{- $units := dict "" 1 "k" 1024 "m" 1048576 "g" 1073741824 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "K" 1024 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- printf "%.0f" (mulf $number (default 1 (get $units $unit))) -}}
{{- end -}}

{{/* The texts of a value, and its numbers if asked for, as JSON: each with its name in its map, at any depth. */}}
{{- define "tailrace.texts" -}}
{{- $found := list -}}
{{- $numbers := .numbers -}}
{{- if or (kindIs "string" .value) (and $numbers (kindIs "float64" .value)) -}}
  {{- $found = append $found (dict "name" .name "value" .value) -}}
{{- else if kindIs "map" .value -}}
  {{- range $name, $value := .value -}}
    {{- $found = concat $found (include "tailrace.texts" (dict "name" $name "value" $value "numbers" $numbers) | fromJsonArray) -}}
  {{- end -}}
{{- else if kindIs "slice" .value -}}
  {{- $name := .name -}}
  {{- range .value -}}
    {{- $found = concat $found (include "tailrace.texts" (dict "name" $name "value" . "numbers" $numbers) | fromJsonArray) -}}
  {{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{/* Whether this name is that of a secret, and its value is the secret itself and not made of variables' names. */}}
{{- define "tailrace.secret" -}}
{{- /* Where secrets come from is none: bearer.auth.credentials.source, fs.s3a.aws.credentials.provider. */ -}}
{{- $source := "(?i)credentials?[.](source|provider)$" -}}
{{- $names := "(?i)passw|pwd|passphrase|credential|secret|[.]key[.]pem|[.]certificate[.]pem|jaas|token|user[.]info|(access|account|api|encryption)[._-]?key" -}}
{{- $variables := "^[$][{][A-Za-z_][A-Za-z0-9_]*[}](:?[$][{][A-Za-z_][A-Za-z0-9_]*[}])*$" -}}
{{- if and (regexMatch $names .name) (not (regexMatch $source .name)) (not (regexMatch $variables (toString .value))) -}}yes{{- end -}}
{{- end -}}
