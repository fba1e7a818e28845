{{/* Names, labels and other parts shared by templates. A pipeline's parts take (dict "root" $ "p" $p). */}}

{{/* A release's name may contain a dot, a Service's may not; and a StatefulSet's revision has to fit into a label. */}}
{{- define "tailrace.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | replace "." "-" | trunc 39 | trimSuffix "-" -}}
{{- end -}}

{{- define "tailrace.labels" -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" -}}
{{- $version := dict "app.kubernetes.io/version" .Chart.AppVersion "helm.sh/chart" $chart -}}
{{- toYaml (mergeOverwrite (include "tailrace.labels.lasting" . | fromYaml) $version) -}}
{{- end -}}

{{/* Labels that never change with the chart's version: for pods, and for what Strimzi copies to its pods. */}}
{{- define "tailrace.labels.lasting" -}}
{{- $own := dict
  "app.kubernetes.io/name" "tailrace"
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "tailrace"
-}}
{{- toYaml (mergeOverwrite (deepCopy .Values.commonLabels) $own) -}}
{{- end -}}

{{/* Labels of a pipeline's pods. */}}
{{- define "tailrace.labels.pod" -}}
{{- $own := mergeOverwrite (include "tailrace.labels.lasting" .root | fromYaml) (include "tailrace.selector" . | fromYaml) -}}
{{- $given := (include "tailrace.role" . | fromJson).labels -}}
{{- toYaml (mergeOverwrite (deepCopy $given) $own (dict "app.kubernetes.io/component" .component)) -}}
{{- end -}}

{{/* Selector of one kind of pods. The release is in our own label, since Strimzi uses the standard ones. */}}
{{- define "tailrace.selector" -}}
tailrace.dev/release: {{ .root.Release.Name | quote }}
tailrace.dev/component: {{ .component }}
{{- with .p }}
tailrace.dev/pipeline: {{ .name | quote }}
{{- end }}
{{- end -}}

{{/* The pipelines and the topics to create, each with its name, as JSON. Every template reads them here. */}}
{{- define "tailrace.pipelines" -}}
{{- include "tailrace.named" (dict "at" "pipelines" "given" .Values.pipelines) -}}
{{- end -}}

{{- define "tailrace.topics" -}}
{{- include "tailrace.named" (dict "at" "kafka.topics" "given" .Values.kafka.topics) -}}
{{- end -}}

{{/* The entries of a map by name, as a list; null removes one. A list, as version 0.1 had it, is taken as it is. */}}
{{- define "tailrace.named" -}}
{{- if kindIs "map" .given -}}
{{- $made := list -}}
{{- range $name, $each := .given -}}
{{- if kindIs "map" $each -}}
{{- if ne $name (default $name $each.name) -}}
{{- fail (printf "\n\n%s.%s has the name %s.\nNext: remove its `name`; the key in the map is its name." $.at $name $each.name) -}}
{{- end -}}
{{- $made = append $made (merge (dict "name" $name) $each) -}}
{{- end -}}
{{- end -}}
{{- toJson $made -}}
{{- else -}}
{{- toJson .given -}}
{{- end -}}
{{- end -}}

{{/* A pipeline merged with the defaults, as JSON. */}}
{{- define "tailrace.pipeline" -}}
{{- mergeOverwrite (deepCopy .root.Values.pipelineDefaults) (deepCopy .p) | toJson -}}
{{- end -}}

{{/* A release of one pipeline of the same name, as the operator makes, says it once. */}}
{{- define "tailrace.pipeline.fullname" -}}
{{- $release := include "tailrace.fullname" .root -}}
{{- if eq $release .p.name }}{{ $release }}{{ else }}{{ printf "%s-%s" $release .p.name }}{{ end -}}
{{- end -}}

{{/*
An image: a pipeline's own repository, tag and digest before those of all pipelines. A digest decides alone; one of all
pipelines does not belong to a repository or a tag of a pipeline's own.
*/}}
{{- define "tailrace.image" -}}
{{- $own := default dict .own -}}
{{- $repository := default .image.repository $own.repository -}}
{{- $digest := default "" $own.digest -}}
{{- if not (or $digest $own.repository $own.tag) }}{{ $digest = default "" .image.digest }}{{ end -}}
{{- with .root.Values.global.imageRegistry }}{{ $repository = printf "%s/%s" (trimSuffix "/" .) $repository }}{{ end -}}
{{- if $digest -}}
{{- printf "%s@%s" $repository $digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion (default .image.tag $own.tag)) -}}
{{- end -}}
{{- end -}}

{{- define "tailrace.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The restricted Pod Security Standard, and a read-only root file system. */}}
{{- define "tailrace.podSecurity" -}}
runAsNonRoot: true
{{- if .Values.podSecurity.fixedIds }}
runAsUser: {{ int .Values.podSecurity.runAsUser }}
runAsGroup: {{ int .Values.podSecurity.runAsGroup }}
fsGroup: {{ int .Values.podSecurity.fsGroup }}
{{- end }}
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
{{- $role := include "tailrace.role" . | fromJson -}}
{{- with $role.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with get .p.priorityClassName .component }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- if $role.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range $role.topologySpreadConstraints }}
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "tailrace.selector" $ | fromYaml)) }}
  - {{- toYaml (merge (deepCopy .) $own) | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}
