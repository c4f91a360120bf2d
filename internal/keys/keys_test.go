package keys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/topodra/topodra/api/v1alpha1"
)

func nics(rails ...string) []v1alpha1.ClaimPlacement {
	c := v1alpha1.ClaimPlacement{Devices: []v1alpha1.DevicePlacement{{Type: v1alpha1.GPUKind}}}
	for _, rail := range rails {
		c.Devices = append(c.Devices, v1alpha1.DevicePlacement{Type: v1alpha1.NICKind, Rail: rail})
	}
	return []v1alpha1.ClaimPlacement{c}
}

func TestNodeRules(t *testing.T) {
	rules := NodeRules{Rack: []string{"example.com/block", RackLabel}}
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprint(100+i))
	}
	for name, test := range map[string]struct {
		node    map[string]string
		claims  []v1alpha1.ClaimPlacement
		want    map[string]string
		refused string
	}{
		"bare node": {nil, nil, map[string]string{HostnameLabel: "node-1"}, ""},
		"all labels": {
			map[string]string{HostnameLabel: "host-1", RackLabel: "r7", ZoneLabel: "z1", RegionLabel: "eu"}, nil,
			map[string]string{HostnameLabel: "host-1", RackLabel: "r7", ZoneLabel: "z1", RegionLabel: "eu"}, "",
		},
		"first rack label wins": {map[string]string{RackLabel: "r7", "example.com/block": "b2"}, nil,
			map[string]string{HostnameLabel: "node-1", RackLabel: "b2"}, ""},
		"empty labels say nothing": {map[string]string{HostnameLabel: "", "example.com/block": "", RackLabel: "r7", ZoneLabel: ""}, nil,
			map[string]string{HostnameLabel: "node-1", RackLabel: "r7"}, ""},
		"bad value is refused": {map[string]string{ZoneLabel: "a,b"}, nil, map[string]string{HostnameLabel: "node-1"}, ZoneLabel},
		"rails in numeric order, once each": {nil, append(nics("10", "2"), nics("2", "0")...),
			map[string]string{HostnameLabel: "node-1", RailsLabel: "r0-r2-r10"}, ""},
		"an unknown rail":   {nil, nics("0", v1alpha1.Unknown), map[string]string{HostnameLabel: "node-1"}, ""},
		"GPUs have no rail": {nil, nics(), map[string]string{HostnameLabel: "node-1"}, ""},
		"too many rails":    {nil, nics(many...), map[string]string{HostnameLabel: "node-1"}, RailsLabel},
	} {
		t.Run(name, func(t *testing.T) {
			got, refused := rules.Labels(Facts{Node: Node{Name: "node-1", Labels: test.node}, Claims: test.claims})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if test.refused == "" && len(refused) > 0 || test.refused != "" && (len(refused) != 1 || !strings.Contains(refused[0].Error(), test.refused)) {
				t.Errorf("refused %v, want %q", refused, test.refused)
			}
			for key := range got {
				found := false
				for _, known := range Labels {
					found = found || known == key
				}
				if !found {
					t.Errorf("label %s is not in the list that the admission policy allows", key)
				}
			}
		})
	}
}

func newPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "pod-uid",
		Labels: map[string]string{"app": "x", HostnameLabel: "made-up"}}}
}

func newKeys(objects ...runtime.Object) (*Keys, *fake.Clientset) {
	client := fake.NewClientset(append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "node-uid", Labels: map[string]string{ZoneLabel: "z1"}}})...)
	writer := NewWriter(client)
	writer.budget, writer.pause = time.Second, time.Millisecond
	return &Keys{Nodes: NewNodeCache(client, "node-1"), Rules: NodeRules{}, Writer: writer, BootID: "boot"}, client
}

var podRef = v1alpha1.PodRef{Namespace: "ns", Name: "pod", UID: "pod-uid"}

func TestApply(t *testing.T) {
	k, client := newKeys(newPod())
	for range 3 {
		if err := k.Apply(context.Background(), podRef, nics("1")); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, action := range client.Actions() {
		got = append(got, action.GetVerb()+" "+action.GetResource().Resource)
	}
	want := []string{"get nodes", "patch pods", "patch pods", "patch pods"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	pod, err := client.CoreV1().Pods("ns").Get(context.Background(), "pod", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantLabels := map[string]string{"app": "x", HostnameLabel: "node-1", ZoneLabel: "z1", RailsLabel: "r1"}
	if diff := cmp.Diff(wantLabels, pod.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	var record v1alpha1.Placement
	if err := json.Unmarshal([]byte(pod.Annotations[v1alpha1.PlacementAnnotation]), &record); err != nil {
		t.Fatal(err)
	}
	wantRecord := v1alpha1.Placement{
		APIVersion: "topodra.dev/v1alpha1", Pod: podRef, Claims: nics("1"),
		Node: v1alpha1.NodeRef{Name: "node-1", UID: "node-uid", BootID: "boot"},
	}
	if diff := cmp.Diff(wantRecord, record); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	patch := client.Actions()[1].(clienttesting.PatchAction).GetPatch()
	if !strings.Contains(string(patch), `"uid":"pod-uid"`) {
		t.Errorf("patch has no precondition: %s", patch)
	}
}

func TestApplyErrors(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	otherUID := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "pod", nil)
	otherUID.ErrStatus.Details.Causes = []metav1.StatusCause{{Field: "metadata.uid"}}
	for name, test := range map[string]struct {
		err   error
		times int
		want  string // "" for success
		gone  bool
	}{
		"deleted":             {apierrors.NewNotFound(pods, "pod"), 1, "pod ns/pod was deleted", true},
		"replaced, 422":       {otherUID, 1, "pod ns/pod was replaced", true},
		"replaced, 409":       {apierrors.NewConflict(pods, "pod", errors.New("Precondition failed: UID in precondition: a, UID in object meta: b")), 1, "was replaced", true},
		"forbidden":           {apierrors.NewForbidden(pods, "pod", errors.New("policy")), 1, "compare the agent's ClusterRole", false},
		"other invalid":       {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "pod", nil), 1, "could not be written", false},
		"busy":                {apierrors.NewTooManyRequests("later", 0), 2, "", false},
		"unavailable":         {apierrors.NewServiceUnavailable("starting"), 2, "", false},
		"conflict":            {apierrors.NewConflict(pods, "pod", errors.New("the object has been modified")), 2, "", false},
		"connection":          {errors.New("connection refused"), 2, "", false},
		"connection for ever": {errors.New("connection refused"), 1000000, "connection refused", false},
	} {
		t.Run(name, func(t *testing.T) {
			k, client := newKeys(newPod())
			if test.times > 10 {
				k.Writer.budget = 20 * time.Millisecond
			}
			var calls atomic.Int64
			client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				if calls.Add(1) <= int64(test.times) {
					return true, nil, test.err
				}
				return false, nil, nil
			})
			err := k.Apply(context.Background(), podRef, nil)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || errors.Is(err, ErrPodGone) != test.gone {
				t.Errorf("got %v (gone: %v), want %q (gone: %v)", err, errors.Is(err, ErrPodGone), test.want, test.gone)
			}
			if !errors.Is(err, test.err) && !test.gone {
				t.Errorf("the cause is lost: %v", err)
			}
		})
	}
}

func TestNodeCache(t *testing.T) {
	k, client := newKeys()
	var down atomic.Bool
	var gets atomic.Int64
	client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		gets.Add(1)
		return down.Load(), nil, errors.New("connection refused")
	})
	clock := time.Now()
	k.Nodes.now = func() time.Time { return clock }
	get := func(wantGets int64, wantErr bool, wantZone string) {
		t.Helper()
		node, err := k.Nodes.Get(context.Background())
		if (err != nil) != wantErr || node.Labels[ZoneLabel] != wantZone || gets.Load() != wantGets {
			t.Fatalf("got %+v, %v after %d reads; want zone %q after %d", node, err, gets.Load(), wantZone, wantGets)
		}
	}
	down.Store(true)
	get(1, true, "")
	get(2, true, "") // never read: every caller tries
	down.Store(false)
	get(3, false, "z1")
	clock = clock.Add(nodeTTL - 1)
	get(3, false, "z1")

	node, _ := client.CoreV1().Nodes().Get(context.Background(), "node-1", metav1.GetOptions{})
	gets.Store(3)
	node.Labels[ZoneLabel] = "z2"
	if _, err := client.CoreV1().Nodes().Update(context.Background(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	clock = clock.Add(1)
	down.Store(true)
	get(4, false, "z1") // the older one stays in use
	get(4, false, "z1") // and is not asked for again at once
	clock = clock.Add(nodeRetry)
	down.Store(false)
	get(5, false, "z2")
}
