package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/claims"
	"github.com/topodra/topodra/internal/keys"
)

type fakeClaims struct {
	mu       sync.Mutex
	fail     map[types.UID]error
	prepared map[types.UID]*resourceapi.ResourceClaim
	siblings map[types.UID]int
}

func (f *fakeClaims) Prepare(_ context.Context, c *resourceapi.ResourceClaim, siblings ...*resourceapi.ResourceClaim) (claims.Prepared, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail[c.UID]; err != nil {
		return claims.Prepared{}, err
	}
	f.prepared[c.UID], f.siblings[c.UID] = c, len(siblings)
	p := claims.Prepared{Devices: []claims.PreparedDevice{{
		Request: "gpu", Pool: "node-1", Name: "dev-" + string(c.UID), CDIDeviceIDs: []string{"topodra.dev/claim=" + string(c.UID)},
		Attributes: map[string]resourceapi.DeviceAttribute{"topodra.dev/type": {StringValue: new("gpu")}},
	}}}
	for _, consumer := range c.Status.ReservedFor {
		p.Pods = append(p.Pods, v1alpha1.PodRef{Namespace: c.Namespace, Name: consumer.Name, UID: consumer.UID})
	}
	return p, nil
}

func (f *fakeClaims) Unprepare(_ context.Context, uid types.UID, _ types.NamespacedName) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.prepared, uid)
	return f.fail[uid]
}

func (f *fakeClaims) Placements(pod types.UID) []v1alpha1.ClaimPlacement {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []v1alpha1.ClaimPlacement
	for uid, c := range f.prepared {
		for _, consumer := range c.Status.ReservedFor {
			if consumer.UID == pod {
				out = append(out, v1alpha1.ClaimPlacement{UID: uid})
			}
		}
	}
	return out
}

func (f *fakeClaims) Known(uid types.UID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.prepared[uid] != nil
}

type fakeKeys struct {
	mu    sync.Mutex
	fail  map[types.UID]error
	calls map[types.UID]int // claims in the record, by pod
	times int
}

func (f *fakeKeys) Apply(_ context.Context, pod v1alpha1.PodRef, claims []v1alpha1.ClaimPlacement) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[pod.UID] = len(claims)
	f.times++
	return f.fail[pod.UID]
}

type fakeRecorder struct {
	mu      sync.Mutex
	calls   []string
	publish []string
}

func (f *fakeRecorder) Call(method string, took time.Duration, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, fmt.Sprintf("%s %v %v", method, took > 0, err != nil))
}

func (f *fakeRecorder) PublishFailed(reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.publish = append(f.publish, reason)
}

type parts struct {
	claims   *fakeClaims
	keys     *fakeKeys
	recorder *fakeRecorder
	fatal    []error
	dropped  [][]string
}

func newPlugin() (*Plugin, *parts) {
	f := &parts{
		claims: &fakeClaims{fail: map[types.UID]error{}, prepared: map[types.UID]*resourceapi.ResourceClaim{}, siblings: map[types.UID]int{}},
		keys:   &fakeKeys{fail: map[types.UID]error{}, calls: map[types.UID]int{}}, recorder: &fakeRecorder{},
	}
	return &Plugin{
		Claims: f.claims, Keys: f.keys, Recorder: f.recorder,
		Fatal:   func(err error) { f.fatal = append(f.fatal, err) },
		Dropped: func(features []string) { f.dropped = append(f.dropped, features) },
	}, f
}

func claim(uid string, pods ...string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim-" + uid, UID: types.UID(uid)},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
	}
	for _, pod := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(pod)})
	}
	return c
}

func TestPrepareResourceClaims(t *testing.T) {
	gone := fmt.Errorf("pod ns/p was deleted: %w", keys.ErrPodGone)
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		batch      []*resourceapi.ResourceClaim
		claimFails map[types.UID]error
		keysFail   map[types.UID]error
		wantErr    map[types.UID]error // by claim; absent for success
		wantKeys   map[types.UID]int   // claims in the record, by pod
	}{
		"one pod, several claims, one patch": {
			batch:    []*resourceapi.ResourceClaim{claim("a", "p"), claim("b", "p")},
			wantKeys: map[types.UID]int{"p": 2},
		},
		"a failing claim leaves the others alone": {
			batch:      []*resourceapi.ResourceClaim{claim("a", "p"), claim("b", "p")},
			claimFails: map[types.UID]error{"a": broken},
			wantErr:    map[types.UID]error{"a": broken},
			wantKeys:   map[types.UID]int{"p": 1},
		},
		"pod is gone": {
			batch:    []*resourceapi.ResourceClaim{claim("a", "p")},
			keysFail: map[types.UID]error{"p": gone},
			wantErr:  map[types.UID]error{"a": keys.ErrPodGone},
			wantKeys: map[types.UID]int{"p": 1},
		},
		"one of two pods is gone": {
			batch:    []*resourceapi.ResourceClaim{claim("shared", "p", "q"), claim("own", "p")},
			keysFail: map[types.UID]error{"p": gone},
			wantErr:  map[types.UID]error{"own": keys.ErrPodGone},
			wantKeys: map[types.UID]int{"p": 2, "q": 1},
		},
		"keys are refused for one of two pods": {
			batch:    []*resourceapi.ResourceClaim{claim("shared", "p", "q"), claim("own", "q")},
			keysFail: map[types.UID]error{"p": broken},
			wantErr:  map[types.UID]error{"shared": broken},
			wantKeys: map[types.UID]int{"p": 1, "q": 2},
		},
		"a claim without pods": {
			batch:    []*resourceapi.ResourceClaim{claim("group")},
			wantKeys: map[types.UID]int{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, f := newPlugin()
			f.claims.fail, f.keys.fail = test.claimFails, test.keysFail
			results, err := p.PrepareResourceClaims(context.Background(), test.batch)
			if err != nil || len(results) != len(test.batch) {
				t.Fatalf("%d results, %v", len(results), err)
			}
			for uid, result := range results {
				if want := test.wantErr[uid]; !errors.Is(result.Err, want) || (want == nil) != (result.Err == nil) {
					t.Errorf("claim %s: got %v, want %v", uid, result.Err, want)
				}
				if result.Err == nil && (len(result.Devices) != 1 || f.claims.siblings[uid] != len(test.batch)) {
					t.Errorf("claim %s: %+v, with %d claims of the pod", uid, result.Devices, f.claims.siblings[uid])
				}
			}
			if diff := cmp.Diff(test.wantKeys, f.keys.calls); diff != "" || f.keys.times != len(test.wantKeys) {
				t.Errorf("%d writes of keys (-want +got):\n%s", f.keys.times, diff)
			}
			wantCall := []string{fmt.Sprintf("prepare true %v", len(test.wantErr) > 0)}
			if diff := cmp.Diff(wantCall, f.recorder.calls); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUnprepareResourceClaims(t *testing.T) {
	p, f := newPlugin()
	f.claims.fail["b"] = errors.New("broken")
	results, err := p.UnprepareResourceClaims(context.Background(), []kubeletplugin.NamespacedObject{{UID: "a"}, {UID: "b"}})
	if err != nil || len(results) != 2 || results["a"] != nil || results["b"] == nil {
		t.Errorf("%v, %v", results, err)
	}
	if diff := cmp.Diff([]string{"unprepare true true"}, f.recorder.calls); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// recoverable marks an error as the helper does.
type recoverable struct{ error }

func (recoverable) Is(other error) bool { return other == kubeletplugin.ErrRecoverable }
func (r recoverable) Unwrap() error     { return r.error }

func TestHandleError(t *testing.T) {
	p, f := newPlugin()
	p.HandleError(context.Background(), recoverable{errors.New("timeout")}, "message")
	if len(f.fatal) > 0 {
		t.Errorf("a recoverable error ends the process: %v", f.fatal)
	}
	ended := errors.New("socket closed")
	p.HandleError(context.Background(), ended, "DRA gRPC server failed")
	if len(f.fatal) != 1 || !errors.Is(f.fatal[0], ended) || !strings.Contains(f.fatal[0].Error(), "DRA gRPC server failed") {
		t.Errorf("fatal: %v", f.fatal)
	}
}

func TestPublishError(t *testing.T) {
	slice := func(counters int) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{SharedCounters: make([]resourceapi.CounterSet, counters)}}
	}
	slices := schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}
	for name, test := range map[string]struct {
		err     error
		reason  string
		advice  string
		dropped [][]string
	}{
		"dropped fields": {
			fmt.Errorf("x: %w", &resourceslice.DroppedFieldsError{DesiredSlice: slice(1), ActualSlice: slice(0)}),
			"dropped-fields", "switched off DRAPartitionableDevices", [][]string{{"DRAPartitionableDevices"}},
		},
		"invalid":       {apierrors.NewInvalid(schema.GroupKind{Kind: "ResourceSlice"}, "x", nil), "invalid", "fault in the driver", nil},
		"forbidden":     {apierrors.NewForbidden(slices, "x", nil), "other", "compare its ClusterRole", nil},
		"anything else": {errors.New("timeout"), "other", "tried again", nil},
	} {
		t.Run(name, func(t *testing.T) {
			p, f := newPlugin()
			p.PublishError(context.Background(), test.err, "message")
			if diff := cmp.Diff([]string{test.reason}, f.recorder.publish); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.dropped, f.dropped); diff != "" {
				t.Errorf("dropped (-want +got):\n%s", diff)
			}
			if _, advice := classify(test.err); !strings.Contains(advice, test.advice) {
				t.Errorf("advice %q, want %q in it", advice, test.advice)
			}
			if len(f.fatal) > 0 {
				t.Errorf("the process ends: %v", f.fatal)
			}
		})
	}
}

// TestOverTheSocket calls two instances of the plugin as the kubelet does.
func TestOverTheSocket(t *testing.T) {
	// Not t.TempDir: its path is too long for a socket.
	dir, err := os.MkdirTemp("", "topodra")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	registrar := filepath.Join(dir, "reg")
	if err := os.Mkdir(registrar, 0o755); err != nil {
		t.Fatal(err)
	}
	c := claim("uid", "p")
	client := fake.NewClientset(c)
	data, cdi := filepath.Join(dir, "data"), filepath.Join(dir, "cdi")
	for _, uid := range []types.UID{"old", "young"} {
		p, f := newPlugin()
		helper, err := p.Start(t.Context(), Options{
			Driver: "topodra.dev", NodeName: "node-1", Client: client,
			RegistrarDir: registrar, DataDir: data, CDIDir: cdi, PodUID: uid,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer helper.Stop()

		info, err := registerapi.NewRegistrationClient(dial(t, filepath.Join(registrar, "topodra.dev-"+string(uid)+"-reg.sock"))).GetInfo(t.Context(), &registerapi.InfoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		plugin := drapb.NewDRAPluginClient(dial(t, info.Endpoint))
		request := []*drapb.Claim{{Namespace: "ns", Name: c.Name, Uid: "uid"}}
		response, err := plugin.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: request})
		if err != nil || response.Claims["uid"].Error != "" {
			t.Fatalf("%v, %v", response, err)
		}
		ids := response.Claims["uid"].Devices[0].CdiDeviceIds
		if diff := cmp.Diff([]string{"topodra.dev/claim=uid", "topodra.dev/metadata=uid_gpu"}, ids); diff != "" {
			t.Errorf("CDI IDs (-want +got):\n%s", diff)
		}
		metadata, err := os.ReadFile(filepath.Join(data, "dra-device-metadata/ns_claim-uid/gpu/metadata.json"))
		if err != nil || !strings.Contains(string(metadata), `"topodra.dev/type"`) {
			t.Errorf("metadata file: %v\n%s", err, metadata)
		}
		checkRestore(t, metadataFiles{cdiDir: cdi, dataDir: data})
		if _, err := plugin.NodeUnprepareResources(t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: request}); err != nil {
			t.Error(err)
		}
		for _, left := range []string{cdi, filepath.Join(data, "dra-device-metadata")} {
			if entries, _ := os.ReadDir(left); len(entries) > 0 {
				t.Errorf("left in %s: %v", left, entries)
			}
		}
		if f.keys.calls["p"] != 1 {
			t.Errorf("keys of the pod: %v", f.keys.calls)
		}
	}
}

// checkRestore compares what restore writes with what the helper wrote for the claim "uid".
func checkRestore(t *testing.T, files metadataFiles) {
	t.Helper()
	name := filepath.Join(files.cdiDir, "topodra.dev_metadata_uid_gpu.json")
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(files.cdiDir); err != nil {
		t.Fatal(err)
	}
	files.restore(t.Context(), func(uid types.UID) bool { return uid == "uid" })
	got, err := os.ReadFile(name)
	if diff := cmp.Diff(string(want), string(got)); err != nil || diff != "" {
		t.Errorf("restored CDI file: %v (-want +got):\n%s", err, diff)
	}
}

func TestMetadataOfUnknownClaims(t *testing.T) {
	dir := t.TempDir()
	files := metadataFiles{cdiDir: filepath.Join(dir, "cdi"), dataDir: filepath.Join(dir, "data")}
	write := func(claim, content string, age time.Duration) string {
		path := filepath.Join(files.dataDir, "dra-device-metadata", "ns_"+claim, "gpu", "metadata.json")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	object := func(claim string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q, "namespace": "ns", "uid": %q}, "podClaimName": "devices"}`, claim, claim)
	}
	ended, recent := write("ended", object("ended"), time.Hour), write("recent", object("recent"), 0)
	broken, live := write("broken", object("broken")[:20], time.Hour), write("live", object("live"), time.Hour)
	files.restore(t.Context(), func(uid types.UID) bool { return uid == "live" })
	for path, want := range map[string]bool{ended: false, recent: true, broken: true, live: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: there: %v, want %v", path, err == nil, want)
		}
	}
	restored, err := os.ReadDir(files.cdiDir)
	if err != nil || len(restored) != 1 {
		t.Fatalf("CDI files %v, %v, want that of the live claim", restored, err)
	}
	content, err := os.ReadFile(filepath.Join(files.cdiDir, restored[0].Name()))
	if err != nil || !strings.Contains(string(content), "/resourceclaimtemplates/devices/gpu/") {
		t.Errorf("%v\n%s", err, content)
	}
}

func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestSocketPathTooLong(t *testing.T) {
	p, _ := newPlugin()
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	_, err := p.Start(t.Context(), Options{Driver: "topodra.dev", NodeName: "n", Client: fake.NewClientset(), DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), "the kernel allows 107") {
		t.Errorf("got %v", err)
	}
}
