package claims

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/cdi"
	"github.com/topodra/topodra/internal/pci"
	"github.com/topodra/topodra/internal/podnet"
	"github.com/topodra/topodra/internal/preflight"
)

// NICMover gets NICs into pods and back; *podnet.Mover does.
type NICMover interface {
	Plan(ctx context.Context, claim podnet.Claim, requests []podnet.Request) ([]podnet.Plan, error)
	Release(ctx context.Context, claim types.UID) error
	Recover(ctx context.Context, known func(types.UID) bool) error
	// Holds tells whether the claim still has the NICs that it was prepared with.
	Holds(claim types.UID, plans []podnet.Plan) bool
}

// Gate is the hook that keeps a container from starting without its NICs.
type Gate struct {
	Path    string // of the program, as the container runtime sees it
	Records string // directory of the NICs' records, see podnet.Record
	Claims  string // directory of the journal
}

// hook refuses containers as long as a NIC is not in their pod.
func (g Gate) hook(plan podnet.Plan) *cdi.Hook {
	hook := &cdi.Hook{HookName: "createRuntime", Path: g.Path, Args: []string{g.Path, g.Records, g.Claims, plan.Address.String()}}
	if plan.Uses != "" {
		hook.Args = append(hook.Args, "rdma")
	}
	return hook
}

// nicPlans are the plans of a claim's NICs by address.
type nicPlans map[pci.Address]podnet.Plan

// planNICs decides how the NICs of a request get into its pod.
func (m *Manager) planNICs(ctx context.Context, r request, devices []Device) ([]podnet.Plan, error) {
	var requests []podnet.Request
	for i, device := range devices {
		res := r.results[i]
		config, path := res.nic()
		for _, part := range device.parts() {
			if part.NIC == nil || res.adminAccess() {
				continue
			}
			requests = append(requests, podnet.Request{
				Device: part.Name, NIC: *part.NIC, Config: config, Path: path,
				Shared: part.Shares > 1 || res.ShareID != nil,
			})
		}
	}
	plans, err := m.NICs.Plan(ctx, podnet.Claim{UID: r.uid, Namespace: r.name.Namespace, Name: r.name.Name}, requests)
	if fault := (podnet.ConfigError{}); errors.As(err, &fault) {
		return nil, permanent(err)
	}
	if err != nil {
		return nil, err
	}
	moving := slices.IndexFunc(plans, podnet.Plan.Moves)
	if moving >= 0 && len(r.pods) > 1 {
		var names []string
		for _, pod := range r.pods {
			names = append(names, pod.Name)
		}
		return plans, permanent(fmt.Errorf("%s would have to be in the network namespaces of %d pods (%s): a claim with a NIC serves one pod, give each pod its own by a ResourceClaimTemplate",
			plans[moving].Device, len(names), strings.Join(names, ", ")))
	}
	return plans, nil
}

func byAddress(plans []podnet.Plan) nicPlans {
	out := nicPlans{}
	for _, p := range plans {
		out[p.Address] = p
	}
	return out
}

// Preflight looks at the NICs of a claim before it is prepared.
type Preflight interface {
	// Check returns what is worth a word, by the NIC's address, and what keeps the
	// claim from being prepared. Both may go away by themselves.
	Check(ctx context.Context, subjects []preflight.Subject) (warnings map[pci.Address][]string, fault error)
}

// subjects are the NICs of a request as preflight looks at them.
func (r request) subjects(devices []Device, plans nicPlans) []preflight.Subject {
	var gpus []pci.Address
	for _, device := range devices {
		for _, part := range device.parts() {
			if part.GPU != nil {
				gpus = append(gpus, part.Address)
			}
		}
	}
	var subjects []preflight.Subject
	for i, device := range devices {
		config, _ := r.results[i].nic()
		for _, part := range device.parts() {
			if part.NIC != nil && !r.results[i].adminAccess() {
				subjects = append(subjects, preflight.Subject{NIC: *part.NIC, GPUs: partners(device, part, gpus), RDMA: config.RDMA, Moves: plans[part.Address].Parent != ""})
			}
		}
	}
	return subjects
}

// findings are what preflight has to say.
type findings struct {
	warnings map[pci.Address][]string
	fault    error
}

// preflight looks at NICs in the background; the answer comes once.
func (m *Manager) preflight(ctx context.Context, subjects []preflight.Subject) <-chan findings {
	answer := make(chan findings, 1)
	if m.Preflight == nil || len(subjects) == 0 {
		answer <- findings{}
		return answer
	}
	go func() {
		warnings, fault := m.Preflight.Check(ctx, subjects)
		answer <- findings{warnings, fault}
	}()
	return answer
}

// warn puts warnings at the devices that they are about.
func (r *record) warn(devices []Device, warnings map[pci.Address][]string) {
	for i := range r.Devices {
		for _, part := range devices[i].parts() {
			r.Devices[i].Warnings = append(r.Devices[i].Warnings, warnings[part.Address]...)
		}
	}
}

// partners returns the GPUs that are to use a NIC: that of its pair, else those of the
// claim that are nearest to it.
func partners(device, nic Device, gpus []pci.Address) []pci.Address {
	if device.Type == v1alpha1.PairKind {
		return []pci.Address{device.Address} // a pair has the address of its GPU
	}
	return nearestOf(gpus, func(gpu pci.Address) string { return nic.Distances[gpu] })
}

// PreparedClaim returns a claim that is prepared.
func (m *Manager) PreparedClaim(uid types.UID) (Prepared, bool) {
	rec := m.index.get(uid)
	if rec == nil || !rec.prepared {
		return Prepared{}, false
	}
	return Prepared{Pods: rec.Pods, Devices: rec.Devices, At: rec.PreparedAt.Time}, true
}

// NICsOf returns the prepared claims of a pod that have NICs.
func (m *Manager) NICsOf(ctx context.Context, pod types.UID) ([]podnet.Claimed, error) {
	if err := m.syncInstances(ctx, ""); err != nil {
		return nil, err
	}
	var out []podnet.Claimed
	for _, rec := range m.index.ofPod(pod) {
		if len(rec.NICs) > 0 {
			out = append(out, rec.claimed())
		}
	}
	return out, nil
}

func (r *record) claimed() podnet.Claimed {
	return podnet.Claimed{Claim: podnet.Claim{UID: r.UID, Namespace: r.Namespace, Name: r.Name}, Plans: r.NICs}
}
