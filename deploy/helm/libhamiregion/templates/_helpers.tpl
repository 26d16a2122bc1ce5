{{- define "hamiregion.name" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains "hamiregion" .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-hamiregion" .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* The DaemonSet's selector, which cannot be changed later. `kubectl hamiregion` finds pods by the name. */}}
{{- define "hamiregion.selector" -}}
app.kubernetes.io/name: hamiregion
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "hamiregion.labels" -}}
{{ include "hamiregion.selector" . }}
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Objects without a namespace: two releases in two namespaces may have the same name. */}}
{{- define "hamiregion.clusterName" -}}
{{ include "hamiregion.name" . }}-{{ .Release.Namespace }}
{{- end -}}

{{- define "hamiregion.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{/* "true" if the pods have an API token: annotations are the only reason. */}}
{{- define "hamiregion.token" -}}
{{ and (eq .Values.mode "agent") .Values.agent.annotations.enabled }}
{{- end -}}

{{- define "hamiregion.planConfigMap" -}}
{{ .Values.agent.plan.configMap | default (printf "%s-plan" (include "hamiregion.name" .)) }}
{{- end -}}

{{- define "hamiregion.appArmor" -}}
{{- if .Values.openshift -}}
off
{{- else if ne .Values.appArmor "auto" -}}
{{ .Values.appArmor }}
{{- else if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version -}}
field
{{- else -}}
annotation
{{- end -}}
{{- end -}}

{{/* Capabilities of the exporter or agent, by what it does; also those that OpenShift allows. */}}
{{- define "hamiregion.capabilities" -}}
{{- $all := list "SYS_PTRACE" -}}
{{- if .Values.outside }}{{ $all = append $all "CHECKPOINT_RESTORE" }}{{ end -}}
{{- if .Values.mig }}{{ $all = append $all "SYS_ADMIN" }}{{ end -}}
{{- if and (eq .Values.mode "agent") .Values.agent.removeGone }}{{ $all = concat $all (list "DAC_OVERRIDE" "FOWNER") }}{{ end -}}
{{ toJson $all }}
{{- end -}}

{{- define "hamiregion.nodeSelector" -}}
{{- if .Values.nodeSelector -}}
{{ toJson .Values.nodeSelector }}
{{- else if eq .Values.flavor "hami" -}}
{"gpu": "on"}
{{- else if ne .Values.flavor "dra" -}}
{"nvidia.com/gpu.present": "true"}
{{- end -}}
{{- end -}}

{{/* Nodes with HAMi have regions, which this release does not read there. */}}
{{- define "hamiregion.affinity" -}}
{{- if .Values.affinity -}}
{{ toYaml .Values.affinity }}
{{- else if and (eq .Values.flavor "none") (not .Values.nodeSelector) -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - {key: gpu, operator: NotIn, values: ["on"]}
{{- end -}}
{{- end -}}

{{/* Mounts of every container: the regions, and the names of pods. */}}
{{- define "hamiregion.mounts" -}}
{{- $root := index . 0 -}}
{{- $writes := index . 1 -}}
{{- if ne $root.Values.flavor "none" }}
- name: regions
  mountPath: /usr/local/vgpu
  {{- if not $writes }}
  readOnly: true
  {{- end }}
{{- end }}
{{- if eq $root.Values.flavor "volcano" }}
- name: earlier-regions
  mountPath: /tmp/vgpu
  {{- if not $writes }}
  readOnly: true
  {{- end }}
{{- end }}
- name: pod-logs
  mountPath: /var/log/pods
  readOnly: true
- name: container-logs
  mountPath: /var/log/containers
  readOnly: true
{{- end -}}

{{/* Environment of every container. */}}
{{- define "hamiregion.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- if eq .Values.flavor "hami" }}
- name: HOOK_PATH
  value: /usr/local/vgpu
{{- else if eq .Values.flavor "kai" }}
- name: CONTAINER_VGPU_MOUNT
  value: /usr/local/vgpu
{{- end }}
{{- end -}}

{{/* Options that every container has. kubelet's files are read through /proc/1/root: a mount would keep pods' volumes busy. */}}
{{- define "hamiregion.nodeArgs" -}}
{{- if ne .Values.paths.kubelet "/var/lib/kubelet" }}
- --claims=/proc/1/root{{ .Values.paths.kubelet }}/dra_manager_state
{{- end }}
{{- if .Values.outside }}
- --outside
{{- end }}
{{- end -}}

{{- define "hamiregion.securityContext" -}}
# Root, so that processes of other users can be read. What is written is decided by the mounts.
runAsUser: 0
runAsGroup: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  add: {{ . }}
{{- end -}}
