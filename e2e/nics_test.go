package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/e2e/kube"
)

// nicNode has NICs with interfaces; see hack/install and internal/simulate/links.
const (
	nicNode = "node1"
	nicsDir = "/var/lib/kubelet/plugins/topodra.dev/nics"
)

// iface is an interface as "ip -json addr" tells it.
type iface struct {
	Name  string   `json:"ifname"`
	MTU   int      `json:"mtu"`
	State string   `json:"operstate"`
	MAC   string   `json:"address"`
	Flags []string `json:"flags"`
	Addrs []struct {
		Local  string `json:"local"`
		Length int    `json:"prefixlen"`
		Scope  string `json:"scope"`
	} `json:"addr_info"`
}

func (i iface) String() string {
	var addrs []string
	for _, a := range i.Addrs {
		if a.Scope != "link" {
			addrs = append(addrs, fmt.Sprintf("%s/%d", a.Local, a.Length))
		}
	}
	return fmt.Sprintf("%s %s mtu %d up %t %s", i.Name, i.MAC, i.MTU, slices.Contains(i.Flags, "UP"), strings.Join(addrs, " "))
}

// hostNICs returns the simulated NICs on the host, by name: those with an alias of the simulation.
func (s *space) hostNICs(ctx context.Context, node string) (map[string]string, error) {
	text, err := s.In(ctx, node, "sh", "-c", "ip -json -details addr show | cat")
	if err != nil {
		return nil, err
	}
	var all []struct {
		iface
		Alias string `json:"ifalias"`
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, i := range all {
		if strings.HasPrefix(i.Alias, "topodra-simulated/") {
			found[i.Name] = i.String()
		}
	}
	return found, nil
}

// atHome are the NICs of each node before any test.
var atHome = map[string]map[string]string{}

// nicsHome tells what is missing until all NICs of a node are as they were at first.
func (s *space) nicsHome(ctx context.Context, node string) (string, error) {
	now, err := s.hostNICs(ctx, node)
	if err != nil {
		return "", err
	}
	if !maps.Equal(now, atHome[node]) {
		return fmt.Sprintf("NICs on the host are %v, want %v", now, atHome[node]), nil
	}
	left, err := s.In(ctx, node, "find", nicsDir, "-name", "*.json")
	if err == nil && left != "" {
		return "records of NICs are left: " + left, nil
	}
	return "", err
}

// sh runs a command in the pod's first container.
func (s *space) sh(t *testing.T, pod *corev1.Pod, command string) string {
	t.Helper()
	text, err := s.Exec(t.Context(), pod, pod.Spec.Containers[0].Name, "sh", "-c", command)
	if err != nil {
		t.Fatalf("%s in pod %s: %v", command, pod.Name, err)
	}
	return strings.TrimSpace(text)
}

// device returns the driver's one entry in the status of the pod's only claim, once it is there.
func (s *space) device(t *testing.T, pod *corev1.Pod) resourceapi.AllocatedDeviceStatus {
	t.Helper()
	var device resourceapi.AllocatedDeviceStatus
	err := kube.Until(t.Context(), startLimit, "status of the claim of "+pod.Name, func(ctx context.Context) (string, error) {
		claims := s.get(t, pod.Name).Status.ResourceClaimStatuses
		if len(claims) != 1 || claims[0].ResourceClaimName == nil {
			return "the pod has no claim", nil
		}
		claim, err := s.ResourceV1().ResourceClaims(s.name).Get(ctx, *claims[0].ResourceClaimName, metav1.GetOptions{})
		if err != nil || len(claim.Status.Devices) == 0 {
			return "it is empty", err
		}
		device = claim.Status.Devices[0]
		return "", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return device
}

func condition(device resourceapi.AllocatedDeviceStatus, kind string) string {
	for _, c := range device.Conditions {
		if c.Type == kind {
			return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		}
	}
	return "none"
}

// pairTemplate asks for pairs, their NICs configured.
func pairTemplate(name string, count int64, config string) *resourceapi.ResourceClaimTemplate {
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{
		Name:    "accel",
		Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "pair.topodra.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count},
	}}
	if config != "" {
		template.Spec.Spec.Devices.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: v1alpha1.Group, Parameters: runtime.RawExtension{
				Raw: []byte(`{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig",` + config + `}`),
			}},
		}}}
	}
	return template
}

// TestNICInPod: the interface is in the pod, for all its containers, and nowhere else; claim, metadata and labels agree; and
// two pods reach each other through their NICs.
func TestNICInPod(t *testing.T) {
	s := newSpace(t)
	s.createTemplate(t, pairTemplate("pair", 1, ""))
	first := s.pod("first", nicNode, "pair")
	init := container("init", corev1.ResourceClaim{Name: "devices"})
	init.Command = []string{"sh", "-c", "ip -o link | grep fabric"}
	first.Spec.InitContainers = []corev1.Container{init}
	first.Spec.Containers = append(first.Spec.Containers, container("second", corev1.ResourceClaim{Name: "devices"}), container("without"))
	s.create(t, first)
	s.create(t, s.pod("second", nicNode, "pair"))
	pods := []*corev1.Pod{s.running(t, "first"), s.running(t, "second")}
	var addresses []string
	for _, pod := range pods {
		device := s.device(t, pod)
		name := device.NetworkData.InterfaceName
		if _, known := atHome[nicNode][name]; !known {
			t.Fatalf("pod %s has interface %q, want one of %v", pod.Name, name, atHome[nicNode])
		}
		host, err := s.hostNICs(t.Context(), nicNode)
		if err != nil || host[name] != "" {
			t.Errorf("%s is in pod %s and on the host: %v %v", name, pod.Name, host, err)
		}
		for _, c := range pod.Spec.Containers {
			text, err := s.Exec(t.Context(), pod, c.Name, "ip", "-o", "addr", "show", "dev", name)
			if err != nil || !strings.Contains(text, device.NetworkData.IPs[0]) || !strings.Contains(text, device.NetworkData.IPs[1]) {
				t.Errorf("container %s of %s: %v %s", c.Name, pod.Name, err, text)
			}
		}
		for kind, want := range map[string]string{
			"Ready": "True Prepared: the pod has what the claim asked for", "NetworkReady": "True InPod: interface " + name + " is in the pod",
			"RDMAReady": "True Shared: RDMA device ",
		} {
			if got := condition(device, kind); !strings.HasPrefix(got, want) {
				t.Errorf("condition %s of %s: %s, want %s", kind, pod.Name, got, want)
			}
		}
		metadata := s.sh(t, pod, "cat /var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/devices/accel/*.json")
		for _, want := range []string{name, device.NetworkData.HardwareAddress, device.NetworkData.IPs[0]} {
			if !strings.Contains(metadata, want) {
				t.Errorf("device metadata lacks %s: %s", want, metadata)
			}
		}
		if pairs := s.sh(t, pod, "echo $TOPODRA_GPU_NICS"); !strings.Contains(pairs, s.pair(t, pod).NIC.RDMADevice) || !strings.Contains(pairs, s.pair(t, pod).GPU.GPUUUID) {
			t.Errorf("TOPODRA_GPU_NICS is %s", pairs)
		}
		addresses = append(addresses, strings.Split(device.NetworkData.IPs[0], "/")[0])
	}
	// from the NIC's own address: by its rule and table
	if text := s.sh(t, pods[0], "ping -c 2 -W 2 -I "+addresses[0]+" "+addresses[1]); !strings.Contains(text, " 0% packet loss") {
		t.Error(text)
	}
	s.restartContainer(t, pods[1])
	if text := s.sh(t, pods[1], "ping -c 2 -W 2 -I "+addresses[1]+" "+addresses[0]); !strings.Contains(text, " 0% packet loss") {
		t.Error(text)
	}
}

// TestNICConfigured: the pod has what the claim's NICConfig says.
func TestNICConfigured(t *testing.T) {
	s := newSpace(t)
	s.createTemplate(t, pairTemplate("pair", 1, `"interface":"rail0","addresses":["10.77.0.5/24"],"mtu":1400,"routes":[{"to":"10.78.0.0/16","via":"10.77.0.1"}],"environment":{"nccl":false}`))
	s.create(t, s.pod("pod", nicNode, "pair"))
	pod := s.running(t, "pod")
	if text := s.sh(t, pod, "ip addr show dev rail0"); !strings.Contains(text, "mtu 1400") || !strings.Contains(text, "10.77.0.5/24") || strings.Contains(text, "198.18.") {
		t.Error(text)
	}
	if text := s.sh(t, pod, "ip route"); !strings.Contains(text, "10.78.0.0/16 via 10.77.0.1 dev rail0") {
		t.Error(text)
	}
	if text := s.sh(t, pod, "env"); strings.Contains(text, "NCCL_IB_HCA") || !strings.Contains(text, "UCX_NET_DEVICES") {
		t.Error(text)
	}
	s.createTemplate(t, pairTemplate("large", 1, `"mtu":9000`))
	s.create(t, s.pod("large", nicNode, "large"))
	const want = "status.allocation.devices.config[0] (FromClaim).opaque.parameters.mtu: 9000 is more than the 4200 bytes of fabric"
	if text := s.event(t, "large", "FailedPrepareDynamicResources"); !strings.Contains(text, want) {
		t.Errorf("the event is %s, want %s", text, want)
	}
}

// TestHostNetwork: NICs stay where the pod is.
func TestHostNetwork(t *testing.T) {
	s := newSpace(t)
	s.createTemplate(t, pairTemplate("pair", 1, ""))
	pod := s.pod("pod", nicNode, "pair")
	pod.Spec.HostNetwork = true
	s.create(t, pod)
	pod = s.running(t, "pod")
	device := s.device(t, pod)
	if got := condition(device, "NetworkReady"); !strings.HasPrefix(got, "True HostNetwork: ") || device.NetworkData != nil {
		t.Errorf("NetworkReady is %s, network data %v", got, device.NetworkData)
	}
	if now, err := s.hostNICs(t.Context(), nicNode); err != nil || !maps.Equal(now, atHome[nicNode]) {
		t.Errorf("NICs on the host are %v, want %v: %v", now, atHome[nicNode], err)
	}
	if text := s.sh(t, pod, "ls /dev/infiniband; env"); !strings.Contains(text, "uverbs") || !strings.Contains(text, "UCX_NET_DEVICES=") {
		t.Error(text)
	}
}

// TestOneClaimTwoPods: a NIC is in one network namespace. The other pod says so, and starts when the first has ended.
func TestOneClaimTwoPods(t *testing.T) {
	s := newSpace(t)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "shared"}, Spec: pairTemplate("", 1, "").Spec.Spec}
	if _, err := s.ResourceV1().ResourceClaims(s.name).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.ResourceV1().ResourceClaims(s.name).Delete(context.Background(), claim.Name, metav1.DeleteOptions{})
	})
	for _, name := range []string{"first", "second"} {
		pod := s.pod(name, nicNode, "")
		pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "devices", ResourceClaimName: &claim.Name}
		s.create(t, pod)
		if name == "first" {
			s.running(t, name)
		}
	}
	const want = "is in pod testoneclaimtwopods/first: a claim with a NIC serves one pod, give each pod its own by a ResourceClaimTemplate"
	if text := s.warning(t, "second", want); strings.Count(text, want) != 1 {
		t.Errorf("the event is %s", text)
	}
	if !kube.IsReady(s.get(t, "first")) {
		t.Error("the first pod suffers")
	}
	s.delete(t, "first", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})
	s.gone(t, "first")
	s.delete(t, "second", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)})
	s.gone(t, "second")
}

// warning waits for a warning event about a pod that has a text.
func (s *space) warning(t *testing.T, pod, want string) string {
	t.Helper()
	var text string
	err := kube.Until(t.Context(), startLimit, "event of pod "+pod+" with: "+want, func(ctx context.Context) (string, error) {
		events, err := s.Events(ctx, s.get(t, pod), corev1.EventTypeWarning)
		var all []string
		for _, event := range events {
			all = append(all, event.Message)
			if strings.Contains(event.Message, want) {
				text = event.Message
				return "", nil
			}
		}
		return fmt.Sprintf("%d others: %s", len(all), strings.Join(all, "\n")), err
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// newSandbox ends the sandbox of a pod, as a crash of its pause process does: the kubelet makes another one, and does not
// prepare the claims again.
func (s *space) newSandbox(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	script := fmt.Sprintf(`export CONTAINER_RUNTIME_ENDPOINT=unix:///run/containerd/containerd.sock
crictl --timeout 30s stopp $(crictl pods -q --state ready --label io.kubernetes.pod.uid=%s)`, pod.UID)
	if text, err := s.In(t.Context(), pod.Spec.NodeName, "sh", "-c", script); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// restarted waits until the container of a pod was started again.
func (s *space) restarted(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	before := pod.Status.ContainerStatuses[0].ContainerID
	err := kube.Until(t.Context(), startLimit, "restart of pod "+pod.Name, func(context.Context) (string, error) {
		now := s.get(t, pod.Name)
		if kube.IsReady(now) && now.Status.ContainerStatuses[0].ContainerID != before {
			pod = now
			return "", nil
		}
		return fmt.Sprintf("%+v", now.Status.ContainerStatuses[0].State), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// TestSecondSandbox: the pod's NIC is in its next sandbox as it was in the first.
func TestSecondSandbox(t *testing.T) {
	s := newSpace(t)
	s.createTemplate(t, pairTemplate("pair", 1, ""))
	s.create(t, s.pod("pod", nicNode, "pair"))
	pod := s.running(t, "pod")
	before := s.sh(t, pod, "ip -o addr show | grep -o 'fabric.*inet [^ ]*'")
	s.newSandbox(t, pod)
	pod = s.restarted(t, pod)
	if after := s.sh(t, pod, "ip -o addr show | grep -o 'fabric.*inet [^ ]*'"); after != before {
		t.Errorf("the pod has %s, had %s", after, before)
	}
	if got := condition(s.device(t, pod), "NetworkReady"); !strings.HasPrefix(got, "True InPod") {
		t.Errorf("NetworkReady is %s", got)
	}
}

// TestAgentTooSlow: the runtime gives up on an agent that hangs, and goes on without it. The containers do not: they say why
// they wait, and start by themselves when the agent is back.
func TestAgentTooSlow(t *testing.T) {
	s := newSpace(t)
	s.createTemplate(t, pairTemplate("pair", 1, ""))
	s.create(t, s.pod("pod", nicNode, "pair"))
	pod := s.running(t, "pod")
	a := findAgent(t, nicNode)
	a.signal(t, syscall.SIGSTOP)
	t.Cleanup(func() { _ = syscall.Kill(a.pid, syscall.SIGCONT) })
	s.newSandbox(t, pod)
	text := s.warning(t, "pod", "it is not in the pod's network namespace yet, because the topodra agent was not told of the sandbox in time")
	a.signal(t, syscall.SIGCONT)
	t.Logf("the pod says: %s", text)
	back := time.Now()
	pod = s.restarted(t, pod)
	t.Logf("it ran %.1f s after the agent went on", time.Since(back).Seconds())
	s.allWell(t, pod)
}

// TestNRIAbsent: an agent that finds no NRI socket prepares no NIC and says so; when the socket is there, the pod starts by
// itself.
func TestNRIAbsent(t *testing.T) {
	s := newSpace(t)
	s.createTemplate(t, pairTemplate("pair", 1, ""))
	move := func(from, to string) {
		t.Helper()
		if text, err := s.In(context.Background(), nicNode, "mv", from, to); err != nil {
			t.Errorf("%v: %s", err, text)
		}
	}
	const socket, hidden = "/var/run/nri/nri.sock", "/var/run/nri/hidden"
	move(socket, hidden)
	back := sync.OnceFunc(func() { move(hidden, socket) })
	t.Cleanup(back)
	findAgent(t, nicNode).kill(t)
	err := kube.Until(t.Context(), startLimit, "an agent without NRI", func(ctx context.Context) (string, error) {
		text, err := s.In(ctx, nicNode, "wget", "-qO-", "http://127.0.0.1:9464/metrics")
		if err == nil && !strings.Contains(text, "topodra_nri_connected 0") {
			return "it is connected", nil
		}
		return "", err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.create(t, s.pod("pod", nicNode, "pair"))
	text := s.warning(t, "pod", "the driver has no connection to the container runtime's NRI: /var/run/nri/nri.sock does not exist: switch NRI on in the container runtime")
	t.Logf("the pod says: %s", text)
	back()
	start := time.Now()
	pod := s.running(t, "pod")
	t.Logf("it ran %.1f s after the socket was back", time.Since(start).Seconds())
	s.allWell(t, pod)
}

// allWell checks that a pod has its NIC, and that the agents are ready again.
func (s *space) allWell(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if text := s.sh(t, pod, "ip -o link"); !strings.Contains(text, "fabric") {
		t.Errorf("pod %s has no NIC: %s", pod.Name, text)
	}
	s.agentsReady(t)
}

// TestContainerdKilled: NICs stay in their pod while the runtime is away, and come home when the pod ends afterwards.
func TestContainerdKilled(t *testing.T) {
	s := newSpace(t)
	s.createTemplate(t, pairTemplate("pair", 1, ""))
	s.create(t, s.pod("pod", nicNode, "pair"))
	pod := s.running(t, "pod")
	before := s.sh(t, pod, "ip -o addr show | grep -o 'fabric.*inet [^ ]*'")
	for _, daemon := range []string{"containerd", "kubelet"} {
		for _, verb := range []string{"kill", "start"} {
			if text, err := s.Hack(t.Context(), "svc", "-n", nicNode, verb, daemon); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
		}
	}
	s.agentsReady(t)
	err := kube.Until(t.Context(), startLimit, "answer of the pod", func(ctx context.Context) (string, error) {
		text, err := s.Exec(ctx, pod, "main", "sh", "-c", "ip -o addr show | grep -o 'fabric.*inet [^ ]*'")
		if strings.TrimSpace(text) != before {
			return "it has " + text, err
		}
		return "", err
	})
	if err != nil {
		t.Fatal(err)
	}
	// A pod whose sandbox the agent learns of by the new connection.
	s.create(t, s.pod("next", nicNode, "pair"))
	s.running(t, "next")
}

// TestEightNICsFiftyPods: nothing is lost and nothing leaks.
func TestEightNICsFiftyPods(t *testing.T) {
	s := newSpace(t)
	s.createTemplate(t, pairTemplate("all", 8, ""))
	round := func(i int) {
		name := fmt.Sprintf("pod-%d", i)
		pod := s.pod(name, nicNode, "all")
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Spec.Containers[0].Command = []string{"sh", "-c", "test $(ip -o -4 addr | grep -c 198.18) = 8"}
		s.create(t, pod)
		err := kube.Until(t.Context(), startLimit, "success of "+name, func(context.Context) (string, error) {
			if phase := s.get(t, name).Status.Phase; phase != corev1.PodSucceeded {
				return string(phase), nil
			}
			return "", nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s.delete(t, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	}
	round(0)
	before := s.agentGauges(t)
	start := time.Now()
	for i := range 50 {
		round(i + 1)
	}
	t.Logf("50 pods with 8 NICs took %.1f s", time.Since(start).Seconds())
	err := kube.Until(t.Context(), endLimit, "NICs at home", func(ctx context.Context) (string, error) { return s.nicsHome(ctx, nicNode) })
	if err != nil {
		t.Error(err)
	}
	s.checkNode(t.Context(), t, nicNode)
	err = kube.Until(t.Context(), 20*time.Second, "as many files and goroutines as before", func(context.Context) (string, error) {
		after := s.agentGauges(t)
		for name, was := range before {
			if after[name] > was+3 { // connections to the API server come and go
				return fmt.Sprintf("%s is %g, was %g", name, after[name], was), nil
			}
		}
		return "", nil
	})
	if err != nil {
		t.Error(err)
	}
}

// agentGauges reads what could leak in the agent.
func (s *space) agentGauges(t *testing.T) map[string]float64 {
	t.Helper()
	text, err := s.In(t.Context(), nicNode, "wget", "-qO-", "http://127.0.0.1:9464/metrics")
	if err != nil {
		t.Fatal(err)
	}
	gauges := map[string]float64{}
	for line := range strings.Lines(text) {
		var value float64
		for _, name := range []string{"go_goroutines", "process_open_fds"} {
			if n, _ := fmt.Sscanf(line, name+" %g", &value); n == 1 {
				gauges[name] = value
			}
		}
	}
	if len(gauges) != 2 {
		t.Fatalf("the agent's metrics lack them: %v", gauges)
	}
	return gauges
}
