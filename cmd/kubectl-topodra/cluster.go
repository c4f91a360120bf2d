package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/report"
)

const (
	agentSelector = "app.kubernetes.io/name=topodra"
	agentPort     = "9464"
	agentPath     = "/topology"

	// clusterTimeout bounds everything that is asked of a cluster.
	clusterTimeout = 15 * time.Second
)

var errNoKubeconfig = errors.New("no kubeconfig: give --kubeconfig or set KUBECONFIG")

// cluster says which cluster to ask, as kubectl's flags of these names do.
type cluster struct{ kubeconfig, context, namespace string }

func (c cluster) client() (kubernetes.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errNoKubeconfig
	case err != nil:
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return kubernetes.NewForConfig(config)
}

// clusterNode is a node of a cluster, as its agent sees it.
type clusterNode struct {
	cluster
	node string
}

// report asks the agent of the node. Without it, the node's ResourceSlices tell
// less, but are there for everybody who may look at devices.
func (n clusterNode) report(ctx context.Context) (*report.Report, []string, error) {
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	client, err := n.client()
	if errors.Is(err, errNoKubeconfig) {
		err = fmt.Errorf("%w; topo without NODE needs none and shows this machine", err)
	}
	if err != nil {
		return nil, nil, err
	}
	r, agentErr := n.fromAgent(ctx, client)
	if agentErr == nil {
		return r, nil, nil
	}
	r, err = n.fromSlices(ctx, client)
	if err != nil {
		return nil, nil, fmt.Errorf("node %s: %w; %w", n.node, agentErr, err)
	}
	note := fmt.Sprintf("less is shown, because only the ResourceSlices of %s could be read: %v", n.node, agentErr)
	return r, []string{note}, nil
}

// fromAgent reads the report over the API server, which needs the right to get
// pods/proxy.
func (n clusterNode) fromAgent(ctx context.Context, client kubernetes.Interface) (*report.Report, error) {
	pods, err := client.CoreV1().Pods(n.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: agentSelector,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("its agent could not be looked for: %w", err)
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("no pod with label %s runs there", agentSelector)
	}
	// During a rolling update there are two; the one that is ready answers.
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int {
		return cmp.Or(rank(a)-rank(b), b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
	})
	var errs []error
	for _, pod := range pods.Items {
		text, err := client.CoreV1().Pods(pod.Namespace).ProxyGet("", pod.Name, agentPort, agentPath, nil).DoRaw(ctx)
		if err == nil {
			var r report.Report
			if err = json.Unmarshal(text, &r); err == nil {
				return &r, nil
			}
		}
		errs = append(errs, fmt.Errorf("its agent %s/%s does not answer: %w", pod.Namespace, pod.Name, err))
	}
	return nil, errors.Join(errs...)
}

// rank is 0 for pods that are ready.
func rank(p corev1.Pod) int {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return 0
		}
	}
	return 1
}

func (n clusterNode) fromSlices(ctx context.Context, client kubernetes.Interface) (*report.Report, error) {
	list, err := client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"spec.driver": v1alpha1.Group, "spec.nodeName": n.node}.String(),
	})
	if err != nil {
		return nil, fmt.Errorf("its ResourceSlices could not be read: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("it has no ResourceSlices of %s either: is that the node's name, and is the driver installed there?", v1alpha1.Group)
	}
	return report.FromSlices(n.node, list.Items), nil
}
