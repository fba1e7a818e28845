{{/* A pipeline's revisions: what a driver mounts, under a name that changes with the contents. */}}

{{/* The name of the current one. */}}
{{- define "tailrace.revision" -}}
{{- $contents := printf "%s%s%s" (include "tailrace.config" .) (include "tailrace.executor" .) (toJson .p.files) -}}
{{- printf "%s-%s" (include "tailrace.pipeline.fullname" .) (sha256sum $contents | trunc 10) -}}
{{- end -}}

{{/*
Earlier ones, by name, with their data, as JSON: the last few, and every one whose ReplicaSet has a pod. They are part of
each release's manifest, so that Helm keeps them, removes the oldest, and leaves none after an uninstall.
*/}}
{{- define "tailrace.revisions" -}}
{{- $own := dict "app.kubernetes.io/instance" .root.Release.Name "tailrace.dev/pipeline" .p.name -}}
{{- $used := dict -}}
{{- range (lookup "apps/v1" "ReplicaSet" .root.Release.Namespace "").items -}}
{{- if and (include "tailrace.has" (dict "labels" .metadata.labels "own" $own)) (or .spec.replicas .status.replicas) -}}
{{- range .spec.template.spec.volumes }}{{ with .configMap }}{{ $_ := set $used .name true }}{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $found := dict -}}
{{- range (lookup "v1" "ConfigMap" .root.Release.Namespace "").items -}}
{{- if and (include "tailrace.has" (dict "labels" .metadata.labels "own" $own)) (not (hasKey .metadata.labels "tailrace.dev/live")) -}}
{{- if or (hasKey .metadata.labels "tailrace.dev/revision") (hasKey $used .metadata.name) -}}
{{- $_ := set $found (printf "%s %s" .metadata.creationTimestamp .metadata.name) . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $kept := dict -}}
{{- $current := include "tailrace.revision" . -}}
{{- $most := int .p.revisions -}}
{{- range $key := keys $found | sortAlpha | reverse -}}
{{- $each := get $found $key -}}
{{- if and (ne $each.metadata.name $current) (or (lt (len $kept) $most) (hasKey $used $each.metadata.name)) -}}
{{- $_ := set $kept $each.metadata.name $each.data -}}
{{- end -}}
{{- end -}}
{{- toJson $kept -}}
{{- end -}}

{{/* Whether an object has all these labels. */}}
{{- define "tailrace.has" -}}
{{- $labels := default dict .labels -}}
{{- $missing := dict -}}
{{- range $name, $value := .own }}{{ if ne (default "" (get $labels $name)) $value }}{{ $_ := set $missing $name true }}{{ end }}{{ end -}}
{{- if not $missing }}yes{{ end -}}
{{- end -}}
