package gate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const address = "0000:1d:00.0"

// node is a node with one container, whose network namespace has rail0.
type node struct {
	*testing.T
	Gate
	pod uint64
}

func newNode(t *testing.T) *node {
	dir := t.TempDir()
	n := &node{T: t, Gate: Gate{Dir: filepath.Join(dir, "nics"), Claims: filepath.Join(dir, "claims"), Addresses: []string{address}, Proc: filepath.Join(dir, "proc")}}
	n.write("proc/7/ns/net", "")
	n.write("proc/self/ns/net", "")
	n.write("proc/7/net/dev", "Inter-| Receive\n face |bytes\n    lo: 0\n rail0: 17 0\n")
	var err error
	if n.pod, err = inode(filepath.Join(n.Proc, "7/ns/net")); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) write(name, content string) {
	n.Helper()
	path := filepath.Join(filepath.Dir(n.Dir), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		n.Fatal(err)
	}
}

func (n *node) record(inode uint64, ifName, pod string) {
	n.Helper()
	n.write("nics/"+address+".json", fmt.Sprintf(`{"version":1,"attached":%d,"interface":%q,"pod":%q}`, inode, ifName, pod))
}

// sandbox records that the NIC is in the container's namespace, or one of the same number.
func (n *node) sandbox(id string) {
	n.Helper()
	n.write("nics/"+address+".json", fmt.Sprintf(`{"version":1,"attached":%d,"sandbox":%q,"pod":"ns/other"}`, n.pod, id))
}

// running stands for a driver: somebody locks its file.
func (n *node) running() {
	n.Helper()
	n.write("claims/"+LockFile, "")
	f, err := os.OpenFile(filepath.Join(n.Claims, LockFile), os.O_RDWR, 0)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})
	}
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { _ = f.Close() })
}

func TestGate(t *testing.T) {
	const (
		plain      = `{"ociVersion":"1.2.0","pid":7}`
		containerd = `{"pid":7,"annotations":{"io.kubernetes.cri.sandbox-namespace":"ns","io.kubernetes.cri.sandbox-name":"pod"}}`
		sandbox    = `{"pid":7,"annotations":{"io.kubernetes.cri.sandbox-id":"s1"}}`
		crio       = `{"pid":7,"annotations":{"io.kubernetes.pod.namespace":"ns","io.kubernetes.pod.name":"pod"}}`
	)
	for name, test := range map[string]struct {
		prepare func(n *node)
		state   string
		want    string // "" passes
	}{
		"in the pod":                       {func(n *node) { n.record(n.pod, "rail0", "ns/pod") }, plain, ""},
		"only RDMA":                        {func(n *node) { n.record(n.pod, "", "ns/pod") }, plain, ""},
		"gone":                             {func(n *node) { n.record(n.pod, "rail1", "ns/pod") }, plain, "its interface rail1 has left the pod"},
		"not prepared":                     {func(*node) {}, plain, "its claim is not prepared on this node any more: delete the pod"},
		"no agent":                         {func(n *node) { n.record(0, "", "") }, plain, "because the topodra agent does not run on this node"},
		"no NRI":                           {func(n *node) { n.record(0, "", ""); n.running(); n.write("nics/"+StatusFile, "no socket\n") }, plain, "no connection to the container runtime's NRI: no socket;"},
		"late":                             {func(n *node) { n.record(0, "", ""); n.running() }, plain, "was not told of the sandbox in time"},
		"another pod":                      {func(n *node) { n.record(1, "rail0", "ns/other"); n.running() }, containerd, "it is in pod ns/other: a claim with a NIC serves one pod"},
		"an earlier sandbox":               {func(n *node) { n.record(1, "rail0", "ns/pod"); n.running() }, containerd, "was not told of the sandbox in time"},
		"the same on CRI-O":                {func(n *node) { n.record(1, "rail0", "ns/pod"); n.running() }, crio, "was not told of the sandbox in time"},
		"its sandbox":                      {func(n *node) { n.sandbox("s1") }, sandbox, ""},
		"the number of an earlier sandbox": {func(n *node) { n.sandbox("s0"); n.running() }, sandbox, "it is in pod ns/other"},
		"torn record":                      {func(n *node) { n.write("nics/"+address+".json", `{"att`) }, plain, "record of the NIC"},
		"no process":                       {func(*node) {}, `{}`, "the container runtime did not tell the container's process"},
		"no state":                         {func(*node) {}, ``, "the container runtime did not tell the container's process"},
		"host network": {func(n *node) {
			n.record(0, "", "")
			if err := os.Remove(filepath.Join(n.Proc, "self/ns/net")); err != nil {
				n.Fatal(err)
			}
			if err := os.Link(filepath.Join(n.Proc, "7/ns/net"), filepath.Join(n.Proc, "self/ns/net")); err != nil {
				n.Fatal(err)
			}
		}, plain, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			test.prepare(n)
			err := n.Check(strings.NewReader(test.state))
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "%!")):
				t.Errorf("got %v\nwant %s", err, test.want)
			}
		})
	}
}
