{{/* The pod template of a pipeline's executors; Spark fills in image, resources and owner. */}}
{{- define "tailrace.executor" -}}
{{- $of := dict "root" .root "component" "executor" "p" .p -}}
{{- $role := include "tailrace.role" $of | fromJson -}}
apiVersion: v1
kind: Pod
metadata:
  labels:
    {{- include "tailrace.labels.pod" $of | nindent 4 }}
  {{- with $role.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  # What an executor has not committed is given to another one; and a lost node is given up only after this.
  terminationGracePeriodSeconds: 10
  securityContext:
    {{- include "tailrace.podSecurity" .root | nindent 4 }}
  {{- with include "tailrace.placement" $of }}{{ . | nindent 2 }}{{ end }}
  containers:
    - name: executor
      # Spark puts the files that the driver distributes into the working folder.
      workingDir: /run/tailrace
      securityContext:
        {{- include "tailrace.containerSecurity" .root | nindent 8 }}
      env:
        - {name: HOME, value: /run/tailrace}
        {{- with include "tailrace.env" $of }}{{ . | nindent 8 }}{{ end }}
      {{- if .root.Values.http.enabled }}
      ports:
        - {name: http, containerPort: {{ int .root.Values.http.executorPort }}}
      {{- end }}
      volumeMounts:
        - {name: run, mountPath: /run/tailrace}
        - {name: tmp, mountPath: /tmp}
        {{- if include "tailrace.kafka.mounts" .root }}
        - {name: kafka, mountPath: /etc/tailrace/kafka, readOnly: true}
        {{- end }}
        {{- with $role.volumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
    {{- with $role.sidecars }}{{ toYaml . | nindent 4 }}{{ end }}
  volumes:
    - {name: run, emptyDir: {{ with .p.executors.scratch }}{sizeLimit: {{ . }}}{{ else }}{}{{ end }}}
    - {name: tmp, emptyDir: {}}
    {{- if include "tailrace.kafka.mounts" .root }}
    {{- include "tailrace.kafka.volume" . | nindent 4 }}
    {{- end }}
    {{- with $role.volumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end -}}
