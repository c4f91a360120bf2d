// Package policy proves what the chart lets the agent do, and what not, against a real kube-apiserver.
package policy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"

	"github.com/topodra/topodra/internal/testing/apiserver"
)

const (
	release   = "topodra-system" // namespace of the release
	workloads = "workloads"      // namespace of the pods and claims
	agent     = release + "/topodra"
	ownNode   = "n1"
	otherNode = "n2"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

// cluster is an API server with the chart installed and its policies in force.
type cluster struct {
	server *apiserver.Server
	admin  kubernetes.Interface
}

var installed struct {
	sync.Mutex
	cluster *cluster
}

// sharedCluster returns the test binary's one server with the chart installed.
func sharedCluster(t *testing.T) *cluster {
	t.Helper()
	server := apiserver.Shared(t)
	installed.Lock()
	defer installed.Unlock()
	if installed.cluster == nil {
		installed.cluster = install(t, server)
	}
	return installed.cluster
}

// as returns a client of the agent whose token is bound to a pod on node; empty for a token that is bound to no pod.
func (c *cluster) as(node string) kubernetes.Interface {
	return kubernetes.NewForConfigOrDie(c.server.As(agent, node))
}

// install renders the chart with its default values, applies it and waits until the policies deny.
func install(t *testing.T, server *apiserver.Server) *cluster {
	t.Helper()
	ctx := t.Context()
	c := &cluster{server: server, admin: kubernetes.NewForConfigOrDie(server.Config)}
	for _, name := range []string{release, workloads} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.admin.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{ownNode, otherNode} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := c.admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.apply(t, render(t))
	c.waitForPolicies(t)
	return c
}

// apply creates the objects; a field that the API does not know is an error.
func (c *cluster) apply(t *testing.T, objects []*unstructured.Unstructured, dryRun ...string) {
	t.Helper()
	client := dynamic.NewForConfigOrDie(c.server.Config)
	groups, err := restmapper.GetAPIGroupResources(discovery.NewDiscoveryClientForConfigOrDie(c.server.Config))
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for _, object := range objects {
		kind := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			t.Fatal(err)
		}
		var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
		if namespace := object.GetNamespace(); namespace != "" {
			resource = client.Resource(mapping.Resource).Namespace(namespace)
		}
		options := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun}
		if _, err := resource.Create(t.Context(), object, options); err != nil {
			t.Fatalf("create %s %s: %v", kind.Kind, object.GetName(), err)
		}
	}
}

// waitForPolicies returns once each policy has denied a request that all else allows; the API server needs a moment to load them.
func (c *cluster) waitForPolicies(t *testing.T) {
	t.Helper()
	unbound := c.as("")
	pod := c.pod(t, "canary", ownNode, nil)
	claim := c.claim(t, "canary", ownNode)
	dryRun := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	for policy, request := range map[string]func(context.Context) error{
		"resourceslices.topodra.dev": func(ctx context.Context) error {
			_, err := unbound.ResourceV1().ResourceSlices().Create(ctx, slice("canary", ownNode, driver), metav1.CreateOptions{DryRun: dryRun.DryRun})
			return err
		},
		"resourceclaims.topodra.dev": func(ctx context.Context) error {
			_, err := unbound.ResourceV1().ResourceClaims(workloads).UpdateStatus(ctx, claim, metav1.UpdateOptions{DryRun: dryRun.DryRun})
			return err
		},
		"deviceconfigs.topodra.dev": func(ctx context.Context) error {
			return kinds[0].create(ctx, c, devices(driver, `{}`), metav1.CreateOptions{DryRun: dryRun.DryRun})
		},
		"pods.topodra.dev": func(ctx context.Context) error {
			_, err := unbound.CoreV1().Pods(workloads).Patch(ctx, pod.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"topodra.dev/a":"b"}}}`), dryRun)
			return err
		},
	} {
		var last error
		err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
			last = request(ctx)
			return last != nil && strings.Contains(last.Error(), policy), nil
		})
		if err != nil {
			t.Fatalf("policy %s does not deny an unbound token, last answer: %v", policy, last)
		}
	}
}

// render returns the objects of the chart.
func render(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	text, err := helm(t, append([]string{"template", "topodra", chart, "--namespace", release}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, text)
}

// decode reads YAML documents.
func decode(t *testing.T, text string) (objects []*unstructured.Unstructured) {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

const chart = "../../charts/topodra"

// helm runs the helm that hack/cluster builds and returns what it printed.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	binary, err := apiserver.Binary("helm", "TOPODRA_HELM")
	if err != nil {
		if os.Getenv("TOPODRA_REQUIRE_CLUSTER") != "" {
			t.Fatalf("no helm binary: run `hack/cluster build` (%v)", err)
		}
		t.Skipf("no helm binary: run `hack/cluster build` (%v)", err)
	}
	// "go test" keeps a result until a file changes that the test itself has opened; helm's reads it does not see.
	if err := fs.WalkDir(os.DirFS(chart), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			_, err = os.ReadFile(filepath.Join(chart, path))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), binary, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// check compares a request's outcome with what is wanted: denial is part of the sentence that must deny it, empty for success.
func check(t *testing.T, err error, denial string) {
	t.Helper()
	// The API server's own check of status.devices answers Invalid with a cause Forbidden.
	denied := apierrors.IsForbidden(err) || apierrors.IsInvalid(err)
	switch {
	case denial == "" && err != nil:
		t.Errorf("denied: %v", err)
	case denial != "" && err == nil:
		t.Errorf("allowed, want it denied with %q", denial)
	case denial != "" && (!denied || !strings.Contains(err.Error(), denial)):
		t.Errorf("got %v, want a denial with %q", err, denial)
	}
}
