package bench

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/agent"
)

// floor does the least that any driver with the same guarantees does for a claim: it reads the claim, makes one file
// durable, and writes to the pod. Sizes are those of the agent's own.
type floor struct {
	api  kubernetes.Interface
	dir  string // on the agent's file system
	file []byte // content of the agent's journal file
	meta any    // metadata that the agent's patch sets, without the UID
}

// newFloor learns the sizes from a claim that the agent prepares.
func newFloor(b *testing.B, api kubernetes.Interface, i installation, p *process, s shape) floor {
	b.Helper()
	w := newWorks(b, api, s, 1)
	defer remove(b, api, w)
	if err := p.prepare(b.Context(), w[0]); err != nil {
		b.Fatal(err)
	}
	f := floor{api: api, dir: i.dir}
	var err error
	f.file, err = os.ReadFile(filepath.Join(agent.DataDir(i.dir), "claims", string(w[0].claim.UID)+".json"))
	if err != nil {
		b.Fatal(err)
	}
	pod, err := api.CoreV1().Pods(namespace).Get(b.Context(), w[0].pod.Name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	if pod.Annotations[v1alpha1.PlacementAnnotation] == "" {
		b.Fatal("the agent wrote no placement record")
	}
	f.meta = map[string]any{"labels": pod.Labels, "annotations": pod.Annotations}
	if err := p.unprepare(b.Context(), w[0]); err != nil {
		b.Fatal(err)
	}
	return f
}

// parts are how long the parts of the floor took.
type parts struct{ get, write, patch samples }

func (f floor) get(ctx context.Context, w work) error {
	_, err := f.api.ResourceV1().ResourceClaims(namespace).Get(ctx, w.claim.Name, metav1.GetOptions{})
	return err
}

func (f floor) write(w work) error {
	tmp, err := os.CreateTemp(f.dir, "floor")
	if err != nil {
		return err
	}
	if _, err := tmp.Write(f.file); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), filepath.Join(f.dir, "floor-"+string(w.claim.UID)))
}

func (f floor) patch(ctx context.Context, w work) error {
	patch, err := json.Marshal(map[string]any{"metadata": f.meta})
	if err != nil {
		return err
	}
	_, err = f.api.CoreV1().Pods(namespace).Patch(ctx, w.pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// run does all three for a pod and returns how long they took together.
func (f floor) run(ctx context.Context, w work, p *parts) (time.Duration, error) {
	start := time.Now()
	if err := f.get(ctx, w); err != nil {
		return 0, err
	}
	got := time.Now()
	if err := f.write(w); err != nil {
		return 0, err
	}
	written := time.Now()
	if err := f.patch(ctx, w); err != nil {
		return 0, err
	}
	end := time.Now()
	if p != nil {
		p.get, p.write, p.patch = append(p.get, got.Sub(start)), append(p.write, written.Sub(got)), append(p.patch, end.Sub(written))
	}
	return end.Sub(start), nil
}

// clean removes what run has written for a pod. That is not part of the floor.
func (f floor) clean(w work) { _ = os.Remove(filepath.Join(f.dir, "floor-"+string(w.claim.UID))) }
