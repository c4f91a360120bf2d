// Package kube is what the demo and the end-to-end tests ask of a cluster of hack/cluster. The process must run in the
// cluster's network: "hack/cluster net COMMAND".
package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/topodra/topodra/api/v1alpha1"
)

// AgentNamespace is where hack/install puts the driver.
const AgentNamespace = "topodra"

// Cluster is a cluster and the checkout whose hack/cluster made it.
type Cluster struct {
	kubernetes.Interface
	Root string // of the checkout
}

// Connect reads $KUBECONFIG. Nothing is asked of the cluster yet.
func Connect(root string) (*Cluster, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster: run this with \"hack/cluster net\": %w", err)
	}
	config.QPS, config.Burst = 500, 1000
	client, err := kubernetes.NewForConfig(config)
	return &Cluster{Interface: client, Root: root}, err
}

// Kubectl runs kubectl, with text as its standard input, and returns what it printed.
func (c *Cluster) Kubectl(ctx context.Context, text string, args ...string) (string, error) {
	return run(exec.CommandContext(ctx, "kubectl", args...), text)
}

// In runs a command inside a node: its files, processes and network.
func (c *Cluster) In(ctx context.Context, node string, args ...string) (string, error) {
	return c.Hack(ctx, append([]string{"in", "-n", node}, args...)...)
}

// Hack runs hack/cluster for this cluster; $CLUSTER has its name.
func (c *Cluster) Hack(ctx context.Context, args ...string) (string, error) {
	return run(exec.CommandContext(ctx, filepath.Join(c.Root, "hack", "cluster"), args...), "")
}

func run(cmd *exec.Cmd, stdin string) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Exec runs a command in a container.
func (c *Cluster) Exec(ctx context.Context, pod *corev1.Pod, container string, args ...string) (string, error) {
	return c.Kubectl(ctx, "", append([]string{"exec", "-n", pod.Namespace, pod.Name, "-c", container, "--"}, args...)...)
}

// Until asks again every 100 ms until the answer is "", which stands for done, or the time is over; the last answer is
// part of the error.
func Until(ctx context.Context, limit time.Duration, what string, ask func(context.Context) (missing string, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := "no answer"
	for {
		missing, err := ask(ctx)
		switch {
		case err == nil && missing == "":
			return nil
		case err == nil:
			last = missing
		case ctx.Err() == nil:
			last = err.Error()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not after %v: %s", what, limit, last)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Running waits until n pods of a namespace that fit the selector run with all containers ready, and returns them.
func (c *Cluster) Running(ctx context.Context, namespace, selector string, n int, limit time.Duration) ([]corev1.Pod, error) {
	var ready []corev1.Pod
	err := Until(ctx, limit, fmt.Sprintf("%d running pods %s in %s", n, selector, namespace), func(ctx context.Context) (string, error) {
		list, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return "", err
		}
		ready = ready[:0]
		var missing []string
		for _, pod := range list.Items {
			if IsReady(&pod) && pod.DeletionTimestamp == nil {
				ready = append(ready, pod)
			} else {
				missing = append(missing, c.whyNot(ctx, &pod))
			}
		}
		if len(ready) != n {
			return fmt.Sprintf("%d run, the others: %s", len(ready), strings.Join(missing, "; ")), nil
		}
		return "", nil
	})
	return ready, err
}

// IsReady tells whether all containers of a pod are ready.
func IsReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (c *Cluster) whyNot(ctx context.Context, pod *corev1.Pod) string {
	why := fmt.Sprintf("%s on %q is %s", pod.Name, pod.Spec.NodeName, pod.Status.Phase)
	events, err := c.Events(ctx, pod, corev1.EventTypeWarning)
	if err == nil && len(events) > 0 {
		why += " (" + events[len(events)-1].Message + ")"
	}
	return why
}

// Events returns the events of one type about a pod, those of DNS left out: these clusters have none.
func (c *Cluster) Events(ctx context.Context, pod *corev1.Pod, kind string) ([]corev1.Event, error) {
	list, err := c.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fmt.Sprintf("involvedObject.uid=%s,type=%s,reason!=MissingClusterDNS", pod.UID, kind),
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Devices returns the devices of a node by name, once its pool is complete.
func (c *Cluster) Devices(ctx context.Context, node string) (map[string]resourceapi.Device, error) {
	list, err := c.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: "spec.driver=" + v1alpha1.Group + ",spec.nodeName=" + node,
	})
	if err != nil {
		return nil, err
	}
	devices := map[string]resourceapi.Device{}
	for _, slice := range list.Items {
		if want := slice.Spec.Pool.ResourceSliceCount; int64(len(list.Items)) != want {
			return nil, fmt.Errorf("node %s has %d of %d slices", node, len(list.Items), want)
		}
		for _, device := range slice.Spec.Devices {
			devices[device.Name] = device
		}
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("node %s has no devices", node)
	}
	return devices, nil
}

// Attribute returns a text attribute of a device, "" for none. Names without a domain are the driver's.
func Attribute(device resourceapi.Device, name string) string {
	if !strings.Contains(name, "/") {
		name = v1alpha1.Group + "/" + name
	}
	if value := device.Attributes[resourceapi.QualifiedName(name)].StringValue; value != nil {
		return *value
	}
	return ""
}

// Placement reads the placement record of a pod.
func Placement(pod *corev1.Pod) (v1alpha1.Placement, error) {
	var placement v1alpha1.Placement
	text, ok := pod.Annotations[v1alpha1.PlacementAnnotation]
	if !ok {
		return placement, fmt.Errorf("pod %s has no annotation %s", pod.Name, v1alpha1.PlacementAnnotation)
	}
	if err := json.Unmarshal([]byte(text), &placement); err != nil {
		return placement, fmt.Errorf("annotation %s of pod %s: %w", v1alpha1.PlacementAnnotation, pod.Name, err)
	}
	return placement, nil
}
