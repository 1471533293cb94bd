{{/* Names and labels. */}}

{{- define "mq.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Short: behind it come the set and the number of a pod, and a label has 63 characters. */}}
{{- define "mq.fullname" -}}
{{- $name := include "mq.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "mq.selector" -}}
app.kubernetes.io/name: {{ include "mq.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "mq.brokerSelector" -}}
{{ include "mq.selector" . }}
app.kubernetes.io/component: broker
{{- end -}}

{{- define "mq.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "mq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "mq.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "mq.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "mq.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* Where pods have their names, all sets. */}}
{{- define "mq.domain" -}}
{{- printf "%s-brokers.%s.svc.%s" (include "mq.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{/* Names of all pods, as {"pods": [...]}. */}}
{{- define "mq.pods" -}}
{{- $root := . -}}
{{- $pods := list -}}
{{- range $set := .Values.sets -}}
{{- range $at := until (int $set.replicas) -}}
{{- $pods = append $pods (printf "%s-%s-%d" (include "mq.fullname" $root) $set.name $at) -}}
{{- end -}}
{{- end -}}
{{- dict "pods" $pods | toJson -}}
{{- end -}}

{{/* The brokers of all sets, for the sets to find each other. */}}
{{- define "mq.seeds" -}}
{{- $domain := include "mq.domain" . -}}
{{- $seeds := list -}}
{{- range (include "mq.pods" . | fromJson).pods -}}
{{- $seeds = append $seeds (printf "%s.%s:8081" . $domain) -}}
{{- end -}}
{{- join "," $seeds -}}
{{- end -}}

{{/* raft.members of a set, (list root set count). */}}
{{- define "mq.members" -}}
{{- $root := index . 0 -}}
{{- $set := index . 1 -}}
{{- $members := list -}}
{{- range $at := until (int (index . 2)) -}}
{{- $pod := printf "%s-%s-%d" (include "mq.fullname" $root) $set.name $at -}}
{{- $members = append $members (printf "%s=%s.%s:8082" $pod $pod (include "mq.domain" $root)) -}}
{{- end -}}
{{- join "," $members -}}
{{- end -}}

{{/* Security. */}}

{{- define "mq.authSecret" -}}
{{- .Values.auth.existingSecret | default (printf "%s-auth" (include "mq.fullname" .)) -}}
{{- end -}}

{{/* Empty: there is no TLS. */}}
{{- define "mq.tlsSecret" -}}
{{- if .Values.tls.secretName -}}
{{- .Values.tls.secretName -}}
{{- else if .Values.tls.certManager.issuerRef -}}
{{- printf "%s-tls" (include "mq.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Options as variables of the environment, (dict section (dict key value)). */}}
{{- define "mq.options" -}}
{{- range $section, $options := . }}
{{- range $key, $value := $options }}
- name: {{ printf "MQ_%s_%s" $section $key | upper }}
  {{- if kindIs "bool" $value }}
  value: {{ ternary "yes" "no" $value | quote }}
  {{- else if kindIs "string" $value }}
  value: {{ $value | quote }}
  {{- else }}
  value: {{ $value | toJson | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Options that follow from the other values; `config` comes behind and may not have them. */}}
{{- define "mq.environment" -}}
{{- $root := index . 0 -}}
{{- $set := index . 1 -}}
- name: MQ_NODE_ID
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: MQ_NODE_CLUSTER
  value: {{ $root.Values.cluster | quote }}
- name: MQ_NODE_BROKER_SET
  value: {{ $set.name | quote }}
# A label of the pod from Kubernetes 1.35 on; empty before.
- name: MQ_BROKER_ZONE
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
- name: MQ_BROKER_ADVERTISED
  value: "$(MQ_NODE_ID).{{ include "mq.domain" $root }}:8081"
# For commands in the pod: kubectl exec POD -- mq cluster status
- name: MQ_SERVER
  value: "$(MQ_BROKER_ADVERTISED)"
{{- if include "mq.tlsSecret" $root }}
- name: MQ_CA
  value: /tls/ca.crt
{{- end }}
- name: MQ_BROKER_SEEDS
  value: {{ include "mq.seeds" $root | quote }}
- name: MQ_RAFT_MEMBERS
  value: {{ include "mq.members" (list $root $set $set.founders) | quote }}
# Not the pod's own name: that may not resolve yet when it starts.
- name: MQ_RAFT_LISTEN
  value: "0.0.0.0:8082"
{{- if $root.Values.external.enabled }}
- name: MQ_BROKER_EXTERNAL_LISTEN
  value: "0.0.0.0:9081"
- name: MQ_BROKER_EXTERNAL_ADVERTISED
  value: "$(MQ_NODE_ID).{{ $root.Values.external.domain }}:{{ $root.Values.external.port }}"
{{- end }}
{{- if eq $root.Values.auth.mode "open" }}
- name: MQ_AUTH_OPEN
  value: "yes"
{{- else }}
- name: MQ_AUTH_MODE
  value: {{ $root.Values.auth.mode | quote }}
- name: MQ_AUTH_BOOTSTRAP_ADMIN_FILE
  value: /auth/first-admin
- name: MQ_AUTH_CLUSTER_KEY_FILE
  value: /auth/cluster.key
- name: MQ_AUTH_SECRET_KEY_FILE
  value: /auth/secret.key
{{- end }}
{{- if include "mq.tlsSecret" $root }}
- name: MQ_BROKER_TLS
  value: {{ $root.Values.tls.mode | quote }}
- name: MQ_METRICS_TLS
  value: {{ ternary "on" "off" $root.Values.tls.metrics | quote }}
{{- range $part, $file := dict "CERT" "tls.crt" "KEY" "tls.key" "CA" "ca.crt" }}
- name: MQ_BROKER_TLS_{{ $part }}
  value: /tls/{{ $file }}
- name: MQ_RAFT_TLS_{{ $part }}
  value: /tls/{{ $file }}
{{- end }}
{{- end }}
{{- include "mq.options" (mergeOverwrite (deepCopy $root.Values.config) ($set.config | default dict)) }}
{{- end -}}

{{/* Hands leadership over, so that producers see a pause and no election, while the broker still serves.
     A failure is no matter: SIGTERM does the same. */}}
{{- define "mq.preStop" -}}
{{- $root := index . 0 -}}
{{- $set := index . 1 -}}
mq cluster transfer-leader --from "$MQ_NODE_ID" --set {{ $set.name }} --timeout 5
{{- if ne $root.Values.auth.mode "open" }} --api-key-file /auth/cluster.key{{ end }};
sleep {{ $root.Values.preStopWaitSeconds }}
{{- end -}}

{{/* Brokers of one set keep away from each other, (list root set). */}}
{{- define "mq.affinity" -}}
{{- $root := index . 0 -}}
{{- $set := index . 1 -}}
{{- $keys := dict "node" "kubernetes.io/hostname" "zone" "topology.kubernetes.io/zone" -}}
{{- $required := list -}}
{{- $preferred := list -}}
{{- range $level, $mode := $root.Values.antiAffinity -}}
{{- $labels := fromYaml (include "mq.brokerSelector" $root) | merge (dict "mq/set" $set.name) -}}
{{- $term := dict "topologyKey" (get $keys $level) "labelSelector" (dict "matchLabels" $labels) -}}
{{- if eq $mode "required" -}}
{{- $required = append $required $term -}}
{{- else if eq $mode "preferred" -}}
{{- $preferred = append $preferred (dict "weight" 100 "podAffinityTerm" $term) -}}
{{- end -}}
{{- end -}}
{{- if or $required $preferred -}}
affinity:
  podAntiAffinity:
    {{- with $required }}
    requiredDuringSchedulingIgnoredDuringExecution:
      {{- toYaml . | nindent 6 }}
    {{- end }}
    {{- with $preferred }}
    preferredDuringSchedulingIgnoredDuringExecution:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end -}}
{{- end -}}
