{{/*
What the pods of one role, driver or executor, are given, as JSON: the pipeline's own settings, and the role's `pod`.
Labels, annotations and variables of the role are added; anything else replaces the pipeline's. `helm test` is a driver.
*/}}
{{- define "tailrace.role" -}}
{{- $p := .p -}}
{{- $own := ternary $p.executors.pod $p.driver.pod (eq .component "executor") -}}
{{- $made := dict "sidecars" list "volumes" list "volumeMounts" list -}}
{{- range $name := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" -}}
{{- $_ := set $made $name (get $p $name) -}}
{{- end -}}
{{- $made = mergeOverwrite $made (deepCopy (omit $own "nodeSelector" "affinity")) -}}
{{- range $name := list "nodeSelector" "affinity" -}}
{{- if hasKey $own $name }}{{ $_ := set $made $name (get $own $name) }}{{ end -}}
{{- end -}}
{{- $_ := set $made "labels" (mergeOverwrite (deepCopy $p.podLabels) (default dict $own.labels)) -}}
{{- $_ := set $made "annotations" (mergeOverwrite (deepCopy $p.podAnnotations) (default dict $own.annotations)) -}}
{{- $_ := set $made "env" (mergeOverwrite (deepCopy $p.env) (default dict $own.env)) -}}
{{- if and (eq .component "driver") (not $made.affinity) (gt (int $p.driver.standbys) 0) -}}
{{- $select := dict "matchLabels" (include "tailrace.selector" . | fromYaml) -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" $select -}}
{{- $apart := list (dict "weight" 100 "podAffinityTerm" $term) -}}
{{- $_ := set $made "affinity" (dict "podAntiAffinity" (dict "preferredDuringSchedulingIgnoredDuringExecution" $apart)) -}}
{{- end -}}
{{- $known := dict -}}
{{- range $made.tolerations }}{{ $_ := set $known (default "" .key) true }}{{ end -}}
{{- if and (ge (int $p.nodeLossSeconds) 0) (not (hasKey $known "")) -}}
{{- range $taint := list "node.kubernetes.io/not-ready" "node.kubernetes.io/unreachable" -}}
{{- if not (hasKey $known $taint) -}}
{{- $short := dict "key" $taint "operator" "Exists" "effect" "NoExecute" "tolerationSeconds" (int $p.nodeLossSeconds) -}}
{{- $_ := set $made "tolerations" (append $made.tolerations $short) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $made -}}
{{- end -}}
