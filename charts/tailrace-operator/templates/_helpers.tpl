{{- define "operator.name" -}}
{{- .Release.Name | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "operator.selector" -}}
app.kubernetes.io/name: tailrace-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: tailrace
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* What all Pipelines share; the operator may ask their drivers. */}}
{{- define "operator.platform" -}}
{{- $http := default dict .Values.platform.http -}}
{{- $asker := dict
  "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace))
  "podSelector" (dict "matchLabels" (include "operator.selector" . | fromYaml))
-}}
{{- $from := append (default list $http.from) $asker -}}
{{- toYaml (merge (dict "http" (merge (dict "from" $from) $http)) .Values.platform) -}}
{{- end -}}

{{/* Each rule, and what it is for, is in docs/operator.md; a test compares them. */}}
{{- define "operator.rules" -}}
- apiGroups: [streaming.tailrace.dev]
  resources: [tailracepipelines]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [streaming.tailrace.dev]
  resources: [tailraceoperations]
  verbs: [get, list, watch, create, patch]
- apiGroups: [streaming.tailrace.dev]
  resources: [tailracepipelines/status, tailraceoperations/status]
  verbs: [get, patch]
- apiGroups: [streaming.tailrace.dev]
  resources: [tailracepipelines/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list]
- apiGroups: [""]
  resources: [serviceaccounts, configmaps, services]
  verbs: [get, list, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [create, delete, deletecollection, get, list, watch]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, create, patch, delete]
- apiGroups: [kafka.strimzi.io]
  resources: [kafkausers]
  verbs: [get, list, create, patch, delete]
- apiGroups: [kafka.strimzi.io]
  resources: [kafkatopics]
  verbs: [get, list, create, patch]
{{ include "operator.rules.secrets" . }}
{{- end -}}

{{- define "operator.rules.secrets" -}}
{{- if .Values.gates.secrets -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end -}}
{{- end -}}

{{/* Where Pipelines of other namespaces may wait for objects. */}}
{{- define "operator.rules.gates" -}}
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get]
- apiGroups: [kafka.strimzi.io]
  resources: [kafkausers, kafkatopics]
  verbs: [get]
{{ include "operator.rules.secrets" . }}
{{- end -}}
