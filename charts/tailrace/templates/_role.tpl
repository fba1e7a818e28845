{{/*
What the pods of one role, driver or executor, are given, as JSON: the pipeline's own settings, and the role's `pod`.
Labels, annotations and variables of the role are added; anything else replaces the pipeline's. `helm test` is a driver.
*/}}
{{- define "tailrace.role" -}}
{{- $p := .p -}}
{{- $own := ternary $p.executors.pod $p.driver.pod (eq .component "executor") -}}
{{- $made := dict -}}
{{- range $name := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" -}}
{{- $_ := set $made $name (get (ternary $own $p (hasKey $own $name)) $name) -}}
{{- end -}}
{{- range $name := list "sidecars" "volumes" "volumeMounts" -}}
{{- $_ := set $made $name (default list (get $own $name)) -}}
{{- end -}}
{{- range $name, $common := dict "labels" $p.podLabels "annotations" $p.podAnnotations "env" $p.env -}}
{{- $_ := set $made $name (mergeOverwrite (deepCopy $common) (default dict (get $own $name))) -}}
{{- end -}}
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
