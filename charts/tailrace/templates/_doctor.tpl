{{/* The spec of a pod that runs `tailrace doctor` for a pipeline with its driver's access. Takes (dict "root" $ "p" $p). */}}
{{- define "tailrace.doctor" -}}
{{- $of := dict "root" .root "component" "test" "p" .p -}}
{{- $role := include "tailrace.role" $of | fromJson -}}
restartPolicy: Never
serviceAccountName: {{ include "tailrace.pipeline.fullname" . | quote }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with include "tailrace.pullSecrets" .root }}{{ . }}{{ end }}
securityContext:
  {{- include "tailrace.podSecurity" .root | nindent 2 }}
{{- with include "tailrace.placement" $of }}{{ . | nindent 0 }}{{ end }}
containers:
  - name: doctor
    image: {{ include "tailrace.image" (dict "root" .root "image" .root.Values.images.driver "own" .p.image.driver) }}
    imagePullPolicy: {{ .root.Values.images.pullPolicy }}
    args: [doctor, /etc/tailrace/pipeline/pipeline.yaml]
    workingDir: /run/tailrace
    env:
      - {name: HOME, value: /run/tailrace}
      {{- with include "tailrace.env" $of }}{{ . | nindent 6 }}{{ end }}
    resources: {{- toYaml .root.Values.jobs.resources | nindent 6 }}
    securityContext: {{- include "tailrace.containerSecurity" .root | nindent 6 }}
    volumeMounts:
      - {name: pipeline, mountPath: /etc/tailrace/pipeline, readOnly: true}
      - {name: run, mountPath: /run/tailrace}
      - {name: tmp, mountPath: /tmp}
      {{- if include "tailrace.kafka.mounts" .root }}
      - {name: kafka, mountPath: /etc/tailrace/kafka, readOnly: true}
      {{- end }}
      {{- with $role.volumeMounts }}{{ toYaml . | nindent 6 }}{{ end }}
volumes:
  - name: pipeline
    configMap: {name: {{ include "tailrace.revision" . }}}
  - {name: run, emptyDir: {}}
  - {name: tmp, emptyDir: {}}
  {{- if include "tailrace.kafka.mounts" .root }}
  {{- include "tailrace.kafka.volume" . | nindent 2 }}
  {{- end }}
  {{- with $role.volumes }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end -}}
