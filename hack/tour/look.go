package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/e2e/kube"
)

// routerLabels are what routers read, in the order of the demo's table.
var routerLabels = []string{
	corev1.LabelHostname, "topology.kubernetes.io/rack", corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
}

// slices shows what the nodes publish.
func (t *tour) slices(ctx context.Context) error {
	t.section("1. What the nodes publish")
	t.command("kubectl get resourceslices")
	text, err := t.cluster.Kubectl(ctx, "", "get", "resourceslices")
	if err != nil {
		return err
	}
	t.lines(text)

	t.section("   GPUs and NICs that are as near to each other as their machine allows",
		"The nodes are SIMULATED, and their slices say so: each shows a machine whose facts were published by somebody who has one.")
	rows := [][]string{{"NODE", "MACHINE", "AFFINITY GROUP", "GPUS", "NICS (RDMA DEVICE)", "PAIRS"}}
	for _, node := range t.nodes {
		devices, err := t.cluster.Devices(ctx, node)
		if err != nil {
			return err
		}
		gpus, nics, pairs := map[string][]string{}, map[string][]string{}, map[string]int{}
		for _, name := range slices.Sorted(maps.Keys(devices)) {
			device := devices[name]
			group, address := kube.Attribute(device, "affinityGroup"), kube.Attribute(device, "resource.kubernetes.io/pciBusID")
			switch kind := kube.Attribute(device, "type"); kind {
			case "gpu":
				gpus[group] = append(gpus[group], address)
			case "nic":
				nics[group] = append(nics[group], address+" ("+kube.Attribute(device, "rdmaDevice")+")")
			case "pair": // a GPU with its NICs as one device: the same hardware once more
				pairs[group]++
			default:
				t.check(fmt.Errorf("device %s of %s is of type %q", name, node, kind))
			}
			want(t.printer, "simulated machine of "+name, kube.Attribute(device, "simulated"), t.machines[node].Slug)
		}
		want(t.printer, "number of GPUs of "+node, total(gpus), len(t.machines[node].GPUs))
		want(t.printer, "number of NICs of "+node, total(nics), len(t.machines[node].NICs))
		for i, group := range slices.Sorted(maps.Keys(gpus)) {
			first := []string{"", ""}
			if i == 0 {
				first = []string{node, t.machines[node].Slug}
			}
			want(t.printer, "a group without NICs", len(nics[group]) == 0, false)
			want(t.printer, "number of pairs in "+group, pairs[group], len(gpus[group]))
			rows = append(rows, append(first, group, strings.Join(gpus[group], ", "), strings.Join(nics[group], ", "), strconv.Itoa(pairs[group])))
		}
	}
	t.table(rows)
	t.note("zoordma: the publisher of that machine did not print the names of its RDMA devices.")
	return nil
}

// topo shows a node as its agent sees it.
func (t *tour) topo(ctx context.Context) error {
	node := t.nodes[len(t.nodes)-1]
	t.section("   A node as its agent sees it")
	t.command("kubectl topodra topo %s", node)
	command := exec.CommandContext(ctx, "go", "run", "./cmd/kubectl-topodra", "topo", node)
	command.Dir, command.Env = t.cluster.Root, append(os.Environ(), "CGO_ENABLED=0")
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("kubectl topodra topo %s: %w: %s", node, err, stderr.String())
	}
	t.lines(stdout.String())
	want(t.printer, "notes of topo", stderr.String(), "")
	for _, gpu := range t.machines[node].GPUs {
		want(t.printer, "GPU "+gpu.Address+" in topo", strings.Contains(stdout.String(), gpu.Address), true)
	}
	return nil
}

func total(groups map[string][]string) int {
	n := 0
	for _, members := range groups {
		n += len(members)
	}
	return n
}

func (t *tour) sortPods() {
	slices.SortFunc(t.pods, func(a, b seen) int {
		return cmp.Or(len(a.pairs)-len(b.pairs), strings.Compare(a.Spec.NodeName, b.Spec.NodeName), strings.Compare(a.Name, b.Name))
	})
}

// container shows what the claim brought into a container.
func (t *tour) container(ctx context.Context) error {
	t.section("3. Inside the containers")
	for i, pod := range t.pods {
		main := pod.Spec.Containers[0].Name
		devices, err := t.cluster.Exec(ctx, &pod.Pod, main, "sh", "-c", "ls -l /dev/nvidia* /dev/infiniband/*")
		if err != nil {
			return err
		}
		env, err := t.cluster.Exec(ctx, &pod.Pod, main, "sh", "-c", "env | grep -E '^(UCX_|NCCL_|TOPODRA_)' | sort")
		if err != nil {
			return err
		}
		if i == 0 {
			t.command("kubectl exec %s -c %s -- ls -l /dev/nvidia* /dev/infiniband/*", pod.Name, main)
			t.lines(devices)
			t.note("Simulated devices are harmless: each of these nodes is a /dev/null.")
			t.command("kubectl exec %s -c %s -- env", pod.Name, main)
			t.lines(env)
		}
		var rdma []string
		for _, pair := range pod.pairs {
			rdma = append(rdma, pair.NIC.RDMADevice+":1")
			want(t.printer, "GPU in the environment of "+pod.Name, strings.Contains(env, envName(pair.GPU.Name)+"="+pair.GPU.GPUUUID+"\n"), true)
			want(t.printer, "NIC in the environment of "+pod.Name, strings.Contains(env, envName(pair.NIC.Name)+"="+pair.NIC.RDMADevice+"\n"), true)
		}
		want(t.printer, "UCX_NET_DEVICES of "+pod.Name, strings.Contains(env, "UCX_NET_DEVICES="+strings.Join(rdma, ",")+"\n"), true)
		want(t.printer, "NCCL_IB_HCA of "+pod.Name, strings.Contains(env, "NCCL_IB_HCA=="+strings.Join(rdma, ",")+"\n"), true)
		want(t.printer, "number of GPUs in "+pod.Name, count(devices, "/dev/nvidia[0-9]*"), len(pod.pairs))
		want(t.printer, "number of RDMA devices in "+pod.Name, count(devices, "/dev/infiniband/uverbs*"), len(pod.pairs))
	}

	pod, other := t.pods[0], t.pods[0].Spec.Containers[1].Name
	t.command("kubectl exec %s -c %s -- find /dev -name 'nvidia*' -o -name infiniband", pod.Name, other)
	found, err := t.cluster.Exec(ctx, &pod.Pod, other, "find", "/dev", "-name", "nvidia*", "-o", "-name", "infiniband")
	if err != nil {
		return err
	}
	t.lines(found)
	t.note("Nothing: container %q of the same pod does not name the claim.", other)
	want(t.printer, "devices in container "+other, found, "")
	return nil
}

// envName is the variable that names a device to the application.
func envName(device string) string {
	return "TOPODRA_" + strings.ToUpper(strings.ReplaceAll(device, "-", "_"))
}

// count counts the lines of "ls -l" whose path fits a pattern.
func count(ls, pattern string) int {
	n := 0
	for line := range strings.Lines(ls) {
		fields := strings.Fields(line)
		if ok, _ := path.Match(pattern, fields[len(fields)-1]); ok {
			n++
		}
	}
	return n
}

// labels shows what request routers read.
func (t *tour) labels(ctx context.Context) error {
	t.section("4. What a request router reads: labels on the pods", "Written before the containers started.")
	columns := strings.Join(append(slices.Clone(routerLabels), "topodra.dev/rails"), ",")
	t.command("kubectl get pods -L %s", columns)
	text, err := t.cluster.Kubectl(ctx, "", "get", "pods", "-L", columns)
	if err != nil {
		return err
	}
	t.lines(text)
	for _, pod := range t.pods {
		node, err := t.cluster.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, key := range routerLabels {
			want(t.printer, "label "+key+" of "+pod.Name, pod.Labels[key], node.Labels[key])
			want(t.printer, "an empty label "+key, pod.Labels[key] == "", false)
		}
		want(t.printer, "UID of the node in the record of "+pod.Name, pod.placement.Node.UID, string(node.UID))
		want(t.printer, "boot of the node in the record of "+pod.Name, pod.placement.Node.BootID, node.Status.NodeInfo.BootID)
		rails := map[string]bool{}
		for _, pair := range pod.pairs {
			rails["r"+pair.NIC.Rail] = true
		}
		want(t.printer, "rails of "+pod.Name, pod.Labels["topodra.dev/rails"], strings.Join(slices.Sorted(maps.Keys(rails)), "-"))
	}
	return nil
}

// record shows the annotation that tells a pod's devices apart from those of any other time.
func (t *tour) record(ctx context.Context) error {
	pod := t.pods[0]
	t.section("5. What an operator reads: the record on the pod")
	t.command(`kubectl get pod %s -o jsonpath='{.metadata.annotations.topodra\.dev/placement}'     # shown as YAML`, pod.Name)
	text, err := yaml.JSONToYAML([]byte(pod.Annotations[v1alpha1.PlacementAnnotation]))
	if err != nil {
		return err
	}
	t.lines(string(text))
	want(t.printer, "pod UID in the record", pod.placement.Pod.UID, pod.UID)
	for _, claim := range pod.placement.Claims {
		object, err := t.cluster.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		want(t.printer, "claim UID in the record", claim.UID, object.UID)
		var allocated, recorded []string
		for _, result := range object.Status.Allocation.Devices.Results {
			allocated = append(allocated, result.Device)
		}
		for _, device := range claim.Devices {
			recorded = append(recorded, cmp.Or(device.Pair, device.Name))
		}
		want(t.printer, "devices in the record", strings.Join(slices.Compact(recorded), " "), strings.Join(allocated, " "))
	}
	return nil
}

// metadata shows the file that an application reads without the API server.
func (t *tour) metadata(ctx context.Context) error {
	pod := t.pods[0]
	dir := "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/" + pod.Spec.ResourceClaims[0].Name
	file := dir + "/accel/topodra.dev-metadata.json"
	t.section("6. What an application reads: a file with the attributes of each device")
	t.command("kubectl exec %s -- cat %s", pod.Name, file)
	text, err := t.cluster.Exec(ctx, &pod.Pod, pod.Spec.Containers[0].Name, "cat", file)
	if err != nil {
		return err
	}
	var metadata v1beta1.DeviceMetadata
	if err := json.Unmarshal([]byte(text), &metadata); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if metadata.PodClaimName == nil {
		return fmt.Errorf("%s does not name the pod's claim", file)
	}
	t.lines(fmt.Sprintf("%s %s, claim %q of the pod", metadata.APIVersion, metadata.Kind, *metadata.PodClaimName))
	found := map[string]string{}
	for _, request := range metadata.Requests {
		for _, device := range request.Devices {
			t.lines(fmt.Sprintf("request %s: %s", request.Name, device.Name))
			for name, value := range device.Attributes {
				found[string(name)] = valueText(value)
			}
		}
	}
	names := slices.Sorted(maps.Keys(found))
	var rows [][]string
	for left := range (len(names) + 1) / 2 {
		row := []string{names[left], found[names[left]]}
		if right := left + (len(names)+1)/2; right < len(names) {
			row = append(row, names[right], found[names[right]])
		}
		rows = append(rows, row)
	}
	t.table(rows)
	pair := pod.pairs[0]
	want(t.printer, "GPU in the file", found["topodra.dev/gpuBusID"], pair.GPU.PCIAddress)
	want(t.printer, "NICs in the file", found["topodra.dev/nics"], pair.NIC.PCIAddress)
	want(t.printer, "distance in the file", found["topodra.dev/distance"], pair.Distance())
	want(t.printer, "affinity group in the file", found["topodra.dev/affinityGroup"], pair.NIC.AffinityGroup)
	return nil
}

func valueText(value resourceapi.DeviceAttribute) string {
	switch {
	case value.StringValue != nil:
		return *value.StringValue
	case value.IntValue != nil:
		return strconv.FormatInt(*value.IntValue, 10)
	case value.BoolValue != nil:
		return strconv.FormatBool(*value.BoolValue)
	case value.VersionValue != nil:
		return *value.VersionValue
	}
	return "?"
}
