// Package gate lets a container of a claim start only when the claim's NICs are in its
// network namespace. The container runtime runs it as a CDI hook (createRuntime) in the
// host's namespaces, whatever else went wrong: NRI switched off, the driver gone, a
// sandbox that the driver was never told of.
package gate

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Attachment is the part of a NIC's record that tells which pod has it.
type Attachment struct {
	// Inode of the network namespace that has the NIC complete, 0 for none. The kernel
	// gives the number of a namespace that has ended to the next one.
	Inode uint64 `json:"attached,omitempty"`
	// Sandbox is the runtime's name for what the namespace belongs to.
	Sandbox string `json:"sandbox,omitempty"`
	// Interface is the NIC's name there, "" for a NIC without one.
	Interface string `json:"interface,omitempty"`
	// AttachedAt is when the NIC was complete there.
	AttachedAt time.Time `json:"attachedAt,omitzero"`
	// Pod is namespace/name, for sentences.
	Pod string `json:"pod,omitempty"`
}

// StatusFile holds, beside the records, why the driver could not be told of sandboxes;
// it is absent while the driver is connected to the container runtime.
const StatusFile = "nri-down"

// LockFile is locked by every process of the driver that runs.
const LockFile = "instances.lock"

// Gate says which NICs a container must have.
type Gate struct {
	Dir       string   // of the records
	Claims    string   // directory of the claims' journal, for LockFile
	Addresses []string // PCI addresses of the NICs
	RDMA      bool     // the container gets RDMA devices, and must be able to lock memory
	Proc      string   // "/proc"
}

// Check reads the OCI state of a container and returns one sentence, for the event of
// the pod, when it must not start.
func (g Gate) Check(state io.Reader) error {
	var container container
	if err := json.NewDecoder(io.LimitReader(state, 1<<20)).Decode(&container); err != nil {
		return fmt.Errorf("the container runtime did not tell the container's process: %w", err)
	}
	if container.PID <= 0 {
		return errors.New("the container runtime did not tell the container's process: it gave no pid")
	}
	process := filepath.Join(g.Proc, strconv.Itoa(container.PID))
	pod, err := inode(filepath.Join(process, "ns/net"))
	if err != nil {
		return fmt.Errorf("network namespace of the container: %w", err)
	}
	host, err := inode(filepath.Join(g.Proc, "self/ns/net"))
	if err != nil {
		return fmt.Errorf("network namespace of the host: %w", err)
	}
	if pod == host {
		return nil // hostNetwork: the NIC stays where the pod is
	}
	names, err := interfaces(filepath.Join(process, "net/dev"))
	if err != nil {
		return fmt.Errorf("interfaces of the container: %w", err)
	}
	var moved []string
	var last time.Time
	for _, address := range g.Addresses {
		a, err := g.check(address, container, pod, names)
		if err != nil {
			return fmt.Errorf("NIC %s: %w", address, err)
		}
		if a.Interface != "" {
			moved = append(moved, a.Interface)
		}
		if a.AttachedAt.After(last) {
			last = a.AttachedAt
		}
	}
	awaitLinks(process, moved, last.Add(linkWait))
	if g.RDMA {
		raiseMemoryLock(container.PID)
	}
	return nil
}

// raiseMemoryLock lifts the limit of the container's first process, for a container that
// starts while the driver is away: else it is set by NRI. A limit in the container's own
// specification comes after the hooks.
func raiseMemoryLock(pid int) {
	infinite := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	var now unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, &infinite, &now) == nil {
		return
	}
	if unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, nil, &now) == nil && now.Cur < now.Max {
		_ = unix.Prlimit(pid, unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: now.Max, Max: now.Max}, nil)
	}
}

// container is the state that the runtime gives to hooks (OCI runtime specification).
type container struct {
	PID         int               `json:"pid"`
	Annotations map[string]string `json:"annotations"`
}

// pod returns namespace/name, as containerd or CRI-O annotate it; "" when neither does.
func (c container) pod() string {
	for _, keys := range [][2]string{
		{"io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"},
		{"io.kubernetes.pod.namespace", "io.kubernetes.pod.name"},
	} {
		if name := c.Annotations[keys[1]]; name != "" {
			return c.Annotations[keys[0]] + "/" + name
		}
	}
	return ""
}

// sandbox returns the ID of the container's sandbox, "" when the runtime does not tell.
func (c container) sandbox() string {
	for _, key := range []string{"io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID"} {
		if id := c.Annotations[key]; id != "" {
			return id
		}
	}
	return ""
}

func (g Gate) check(address string, c container, pod uint64, names map[string]bool) (a Attachment, err error) {
	a, err = Read(g.Dir, address)
	here := a.Inode == pod && (c.sandbox() == "" || c.sandbox() == a.Sandbox)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return a, errors.New("its claim is not prepared on this node any more: delete the pod")
	case err != nil:
		return a, err
	case here && (a.Interface == "" || names[a.Interface]):
		return a, nil
	case here:
		return a, fmt.Errorf("its interface %s has left the pod: the NIC was removed, or moved by someone; delete the pod", a.Interface)
	case a.Inode != 0 && a.Pod != c.pod(): // else it is in an earlier sandbox of this pod
		return a, fmt.Errorf("it is in pod %s: a claim with a NIC serves one pod, give each pod its own by a ResourceClaimTemplate", a.Pod)
	}
	return a, fmt.Errorf("it is not in the pod's network namespace yet, because %s; the kubelet tries the container again, unless the pod's restartPolicy is Never", g.why())
}

// why says what keeps the driver from moving NICs.
func (g Gate) why() string {
	if !locked(filepath.Join(g.Claims, LockFile)) {
		return "the topodra agent does not run on this node"
	}
	if text, err := os.ReadFile(filepath.Join(g.Dir, StatusFile)); err == nil {
		return "the topodra agent has no connection to the container runtime's NRI: " + strings.TrimSpace(string(text))
	}
	return "the topodra agent was not told of the sandbox in time, or prepared the claim for another pod only; its log says more"
}

// Read reads the attachment of the NIC at a PCI address.
func Read(dir, address string) (Attachment, error) {
	var a Attachment
	content, err := os.ReadFile(filepath.Join(dir, address+".json"))
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(content, &a); err != nil {
		return a, fmt.Errorf("record of the NIC: %w", err)
	}
	return a, nil
}

// locked tells whether somebody holds a lock on a file.
func locked(file string) bool {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	question := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &question)
	return err == nil && question.Type != unix.F_UNLCK
}

func inode(file string) (uint64, error) {
	info, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("no inode")
	}
	return stat.Ino, nil
}

// interfaces reads /proc/PID/net/dev, which shows the namespace of that process.
func interfaces(file string) (map[string]bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, _, ok := strings.Cut(lines.Text(), ":"); ok {
			names[strings.TrimSpace(name)] = true
		}
	}
	return names, nil
}
