package policy

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/topodra/topodra/api/v1alpha1"
)

// simulated are the values of a release that simulates one machine on two nodes.
func simulated(t *testing.T) []string {
	machine := filepath.Join(t.TempDir(), "machine.yaml")
	if err := os.WriteFile(machine, []byte("name: box\nlines: \"two\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{
		"--set", "simulate.enabled=true", "--set-file", "simulate.machines.box=" + machine,
		"--set", `simulate.machineFor.n1=box`, "--set", `simulate.machineFor.n2\.example=box`,
	}
}

// TestManifestsAreValid has the API server validate every object, and a pod of the DaemonSet, without storing them.
func TestManifestsAreValid(t *testing.T) {
	c := sharedCluster(t)
	for name, args := range map[string][]string{
		"default":        nil,
		"simulated":      simulated(t),
		"simulated, one": {"--set", "simulate.enabled=true,simulate.machine=box,simulate.machines.box=text"},
		"everything set": {
			"--set", "kubeletDir=/data/kubelet/,driverRoot=/run/nvidia/driver,metrics.address=127.0.0.1:9999,image.tag=x,logFormat=json",
			"--set", "imagePullSecrets[0].name=s,nodeSelector.a=b,podLabels.a=b,podAnnotations.a=b,resources.limits.memory=256Mi",
			"--set-json", `affinity={"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"gpu","operator":"Exists"}]}]}}}`,
			"--set-json", `config={"devices":["nic"],"rails":[{"rail":0,"cidr":"10.0.0.0/24"}]}`,
			"--set", "admissionPolicies.enabled=false",
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := render(t, args...)
			for _, object := range objects {
				// The installed objects have these names already.
				object.SetName(object.GetName() + "-again")
			}
			c.apply(t, objects, metav1.DryRunAll)
			set := daemonSet(t, objects)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "agent-"}, Spec: set.Spec.Template.Spec}
			if _, err := c.admin.CoreV1().Pods(release).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
				t.Errorf("pod of the DaemonSet: %v", err)
			}
		})
	}
}

// TestTwoAgentsFitOnANode guards what lets a new agent start beside the old one.
func TestTwoAgentsFitOnANode(t *testing.T) {
	set := daemonSet(t, render(t))
	if set.Spec.UpdateStrategy.RollingUpdate.MaxSurge.IntValue() != 1 || set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue() != 0 {
		t.Errorf("update strategy is %v, want a surge", set.Spec.UpdateStrategy)
	}
	container := set.Spec.Template.Spec.Containers[0]
	if len(container.Ports) > 0 {
		t.Errorf("ports %v are declared: with hostNetwork the scheduler keeps the second pod away", container.Ports)
	}
	for name, probe := range map[string]*corev1.Probe{"readiness": container.ReadinessProbe, "liveness": container.LivenessProbe} {
		if probe == nil || probe.Exec == nil {
			t.Errorf("%s probe %v does not ask the pod's own agent", name, probe)
		}
	}
}

// TestHostPaths: what the agent sees of the host, and nothing more.
func TestHostPaths(t *testing.T) {
	want := []string{
		"/ Directory", "/data/kubelet/plugins/topodra.dev DirectoryOrCreate", "/data/kubelet/plugins_registry Directory",
		"/dev Directory", "/var/run/cdi DirectoryOrCreate", "/var/run/netns DirectoryOrCreate", "/var/run/nri DirectoryOrCreate",
	}
	var got []string
	pod := daemonSet(t, render(t, "--set", "kubeletDir=/data/kubelet")).Spec.Template.Spec
	for _, volume := range pod.Volumes {
		if volume.HostPath != nil {
			got = append(got, volume.HostPath.Path+" "+string(*volume.HostPath.Type))
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("host paths (-want +got):\n%s", diff)
	}
	for _, mount := range pod.Containers[0].VolumeMounts {
		if mount.Name == "host" && (!mount.ReadOnly || *mount.MountPropagation != corev1.MountPropagationHostToContainer) {
			t.Errorf("the host's root is mounted as %v, want read-only and HostToContainer", mount)
		}
	}
}

func TestDriverConfigIsAcceptedByTheAgent(t *testing.T) {
	for _, args := range [][]string{nil, {"--set-json", `config={"devices":["nic"],"nodeLabels":{"rack":["example.com/rack"]}}`}} {
		for _, object := range render(t, args...) {
			if object.GetKind() != "ConfigMap" {
				continue
			}
			text, _, err := unstructured.NestedString(object.Object, "data", "config.yaml")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := v1alpha1.ParseDriverConfig([]byte(text)); err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		}
	}
}

func TestConfigSchemaKnowsEveryField(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Config struct {
				Properties map[string]any
			}
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[v1alpha1.DriverConfig]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name != "" && len(field.Index) == 1 {
			want = append(want, name)
		}
	}
	slices.Sort(want)
	got := slices.Sorted(maps.Keys(schema.Properties.Config.Properties))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields of DriverConfig (-) and values.schema.json (+) differ:\n%s", diff)
	}
}

func TestMistakesInValuesAreRefused(t *testing.T) {
	tests := map[string]struct {
		args []string
		want string
	}{
		"unknown key":              {[]string{"--set", "imagee.tag=x"}, "imagee"},
		"unknown nested key":       {[]string{"--set", "image.tagg=x"}, "tagg"},
		"unknown config field":     {[]string{"--set", "config.nicSelektor=x"}, "nicSelektor"},
		"kind of config":           {[]string{"--set", "config.kind=DriverConfig"}, "kind"},
		"relative kubelet dir":     {[]string{"--set", "kubeletDir=var/lib"}, "kubeletDir"},
		"kubelet dir with $":       {[]string{"--set", "kubeletDir=/a/$(B)"}, "would expand $"},
		"label key":                {[]string{"--set", "managedLabelKeys[0]=a b"}, "managedLabelKeys"},
		"address without port":     {[]string{"--set", "metrics.address=localhost"}, "address"},
		"old Kubernetes":           {[]string{"--kube-version", "1.33.9"}, "kubeVersion"},
		"kubelet that deadlocks":   {[]string{"--kube-version", "1.34.1"}, "kubeVersion"},
		"simulate nothing":         {[]string{"--set", "simulate.enabled=true"}, "needs simulate.machine"},
		"machine without simulate": {[]string{"--set", "simulate.machine=a"}, "need simulate.enabled=true"},
		"machine that is not given": {[]string{"--set", "simulate.enabled=true,simulate.machineFor.n1=dgx"},
			"machine dgx (for n1) is not in simulate.machines: add --set-file simulate.machines.dgx=FILE"},
		"two ways to choose": {[]string{"--set", "simulate.enabled=true,simulate.machine=a,simulate.machineFor.n1=a,simulate.machines.a=x"}, "exclude each other"},
		"two ways to place": {append([]string{"--set-json", `affinity={"nodeAffinity":{}}`}, simulated(t)...),
			"simulate.machineFor places the agents itself"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := helm(t, append([]string{"template", "topodra", chart}, tc.args...)...)
			if err == nil {
				t.Error("accepted")
			} else if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want it to name %q", err, tc.want)
			}
		})
	}
}

func TestSupportedKubernetes(t *testing.T) {
	for _, version := range []string{"v1.34.2", "v1.34.6-gke.100", "v1.35.0", "v1.36.1-eks-abc", "v1.37.2"} {
		if _, err := helm(t, "template", "topodra", chart, "--kube-version", version); err != nil {
			t.Errorf("%s: %v", version, err)
		}
	}
}

func TestMachinePerNode(t *testing.T) {
	pod := daemonSet(t, render(t, simulated(t)...)).Spec.Template.Spec
	if want := "--simulate=/etc/topodra/machines/$(NODE_NAME).yaml"; !slices.Contains(pod.Containers[0].Args, want) {
		t.Errorf("arguments %q lack %s", pod.Containers[0].Args, want)
	}
	files := map[string]string{}
	for _, volume := range pod.Volumes {
		if volume.Name == "machines" {
			for _, item := range volume.ConfigMap.Items {
				files[item.Path] = item.Key
			}
		}
	}
	if diff := cmp.Diff(map[string]string{"n1.yaml": "box.yaml", "n2.example.yaml": "box.yaml"}, files); diff != "" {
		t.Errorf("machine files (-want +got):\n%s", diff)
	}
	var nodes []string
	for _, term := range pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		nodes = append(nodes, term.MatchFields[0].Values...)
	}
	if diff := cmp.Diff([]string{"n1", "n2.example"}, nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// TestConfigurationMakesNewPods: the agent reads its configuration and its machine once.
func TestConfigurationMakesNewPods(t *testing.T) {
	sums := map[string]bool{}
	for _, args := range [][]string{
		nil, {"--set", "config.allowSoftwareRDMA=true"},
		{"--set", "simulate.enabled=true,simulate.machine=a,simulate.machines.a=x"},
		{"--set", "simulate.enabled=true,simulate.machine=a,simulate.machines.a=y"},
	} {
		sums[daemonSet(t, render(t, args...)).Spec.Template.Annotations["checksum/config"]] = true
	}
	if len(sums) != 4 {
		t.Errorf("4 configurations have %d checksums", len(sums))
	}
}

func daemonSet(t *testing.T, objects []*unstructured.Unstructured) *appsv1.DaemonSet {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() == "DaemonSet" {
			set := &appsv1.DaemonSet{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, set); err != nil {
				t.Fatal(err)
			}
			return set
		}
	}
	t.Fatal("the chart has no DaemonSet")
	return nil
}
