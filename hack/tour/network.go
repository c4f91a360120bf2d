package main

import (
	"context"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/topodra/topodra/e2e/kube"
)

// network shows that NICs are in the network namespace of their pod, and what the claim says of them.
func (t *tour) network(ctx context.Context) error {
	t.section("   The NIC is in the pod's network namespace, and no longer on the host",
		"Simulated NICs of RoCE machines have virtual interfaces, which move as real ones do; InfiniBand without IPoIB has none.")
	shown := 0
	for _, pod := range t.pods {
		for _, status := range pod.Status.ResourceClaimStatuses {
			claim, devices, err := t.status(ctx, pod, *status.ResourceClaimName)
			if err != nil {
				return err
			}
			for _, device := range devices {
				conditions := map[string]string{}
				var text strings.Builder
				for _, c := range device.Conditions {
					conditions[c.Type] = string(c.Status)
					fmt.Fprintf(&text, "%-13s %-6s %-10s %s\n", c.Type, c.Status, c.Reason, c.Message)
				}
				for _, kind := range []string{"Ready", "NetworkReady", "RDMAReady"} {
					want(t.printer, kind+" of "+device.Device+" in "+claim, conditions[kind], string(metav1.ConditionTrue))
				}
				if device.NetworkData == nil {
					continue
				}
				name := device.NetworkData.InterfaceName
				inPod, err := t.cluster.Exec(ctx, &pod.Pod, pod.Spec.Containers[0].Name, "ip", "-o", "-4", "addr", "show", "dev", name)
				if err != nil {
					return err
				}
				onHost, _ := t.cluster.In(ctx, pod.Spec.NodeName, "ip", "-o", "link", "show", "dev", name)
				want(t.printer, name+" of "+pod.Name+" on the host", onHost, "")
				want(t.printer, "address of "+name+" in "+pod.Name, strings.Contains(inPod, " "+device.NetworkData.IPs[0]+" "), true)
				if shown++; shown == 1 {
					t.command("kubectl exec %s -- ip -o -4 addr show dev %s", pod.Name, name)
					t.lines(strings.Join(strings.Fields(inPod), " ") + "\n")
					t.command("kubectl describe resourceclaim %s", claim)
					t.lines(text.String())
				}
			}
		}
	}
	return nil
}

// status returns a claim's name and the entries of its status.devices, once they are stored, which may be after the pod started.
func (t *tour) status(ctx context.Context, pod seen, name string) (string, []resourceapi.AllocatedDeviceStatus, error) {
	var devices []resourceapi.AllocatedDeviceStatus
	err := kube.Until(ctx, startLimit, "status of claim "+name, func(ctx context.Context) (string, error) {
		claim, err := t.cluster.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil || len(claim.Status.Devices) == 0 {
			return "it has no devices", err
		}
		devices = claim.Status.Devices
		return "", nil
	})
	return name, devices, err
}
