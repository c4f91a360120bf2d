{{/* Labels that select the agent's pods; they cannot change after the first install. */}}
{{- define "topodra.selectorLabels" -}}
app.kubernetes.io/name: topodra
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "topodra.labels" -}}
{{ include "topodra.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The file that one agent simulates; $(NODE_NAME) is expanded by the kubelet. */}}
{{- define "topodra.machineFile" -}}
/etc/topodra/machines/{{ .Values.simulate.machine | default "$(NODE_NAME)" }}.yaml
{{- end }}

{{/* Refuses values that contradict each other, which a schema cannot say in a sentence. */}}
{{- define "topodra.validate" -}}
{{- with .Values.simulate }}
{{- if and (not .enabled) (or .machine .machineFor) }}
{{- fail "simulate.machine and simulate.machineFor need simulate.enabled=true" }}
{{- end }}
{{- if .enabled }}
{{- if and .machine .machineFor }}
{{- fail "simulate.machine and simulate.machineFor exclude each other: set one" }}
{{- end }}
{{- if not (or .machine .machineFor) }}
{{- fail "simulate.enabled needs simulate.machine (one for all nodes) or simulate.machineFor (one per node)" }}
{{- end }}
{{- if and .machineFor $.Values.affinity }}
{{- fail "simulate.machineFor places the agents itself: leave affinity empty" }}
{{- end }}
{{- range $node, $slug := (ternary (dict "every node" .machine) .machineFor (ne .machine "")) }}
{{- if not (hasKey $.Values.simulate.machines $slug) }}
{{- fail (printf "machine %s (for %s) is not in simulate.machines: add --set-file simulate.machines.%s=FILE" $slug $node $slug) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if contains "$" .Values.kubeletDir }}
{{- fail (printf "kubeletDir %s: the kubelet would expand $ in it" .Values.kubeletDir) }}
{{- end }}
{{- end }}
