package podnet

import (
	"errors"
	"fmt"
	iofs "io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/topodra/topodra/internal/netdev"
)

// namespace is an open network namespace. Sockets made in a namespace stay in it, so
// netlink needs no thread there; only sysctls and sysfs do.
type namespace struct {
	*netlink.Handle
	fd    netns.NsHandle
	inode uint64
	path  string // as the container runtime names it; "" for the host's
}

// families are what a namespace needs of netlink.
var families = []int{unix.NETLINK_ROUTE, unix.NETLINK_RDMA}

// hostNamespace opens the namespace that this process runs in, which is the host's.
func hostNamespace() (*namespace, error) { return openNamespace("/proc/self/ns/net", "") }

// podNamespace opens the namespace of a sandbox.
func podNamespace(path string) (*namespace, error) { return openNamespace(path, path) }

// sandboxNamespace opens the namespace of a sandbox, which is the host's for hostNetwork.
func sandboxNamespace(path string) (*namespace, error) {
	if path == "" {
		return hostNamespace()
	}
	return podNamespace(path)
}

func openNamespace(file, path string) (*namespace, error) {
	fd, err := netns.GetFromPath(file)
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", file, err)
	}
	n := &namespace{fd: fd, path: path}
	if n.inode, err = inode(file); err == nil {
		n.Handle, err = openHandle(fd)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network namespace %s: %w", file, err), fd.Close())
	}
	return n, nil
}

// openHandle leaves RDMA out on kernels that lack it.
func openHandle(fd netns.NsHandle) (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(fd, families...)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return netlink.NewHandleAt(fd, unix.NETLINK_ROUTE)
	}
	return h, err
}

// inode identifies a namespace. A path whose namespace has ended is a plain file, or
// gone.
func inode(file string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(file, &fs); err != nil {
		return 0, err
	}
	if fs.Type != unix.NSFS_MAGIC {
		return 0, iofs.ErrNotExist
	}
	var stat unix.Stat_t
	if err := unix.Stat(file, &stat); err != nil {
		return 0, err
	}
	return stat.Ino, nil
}

func (n *namespace) close() {
	n.Close() // sockets
	_ = n.fd.Close()
}

// do runs f on a thread in the namespace.
func (n *namespace) do(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- n.onThread(f) }()
	return <-done
}

func (n *namespace) onThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	back, err := netns.Get()
	if err != nil {
		return err
	}
	defer back.Close()
	if err := netns.Set(n.fd); err != nil {
		return err
	}
	err = f()
	if fault := netns.Set(back); fault != nil {
		// This may be the thread whose namespace stands for that of the process.
		panic(fmt.Sprintf("cannot leave a pod's network namespace: %v", fault))
	}
	return err
}

// sysfs calls f with a directory that holds the sysfs of the namespace: its class/net
// and class/infiniband show what is in the namespace that mounted it.
func (n *namespace) sysfs(f func(dir string) error) error {
	return n.do(func() error {
		fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
		if err != nil {
			return fmt.Errorf("sysfs: %w", err)
		}
		defer unix.Close(fs)
		if err := unix.FsconfigCreate(fs); err != nil {
			return fmt.Errorf("sysfs: %w", err)
		}
		// The mount is attached nowhere and ends with its descriptor.
		mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			return fmt.Errorf("sysfs: %w", err)
		}
		defer unix.Close(mount)
		return f(fmt.Sprintf("/proc/self/fd/%d", mount))
	})
}

// find returns the interface with a parent, nil if it is not in the namespace.
func (n *namespace) find(parent string) (netlink.Link, error) {
	links, err := netdev.Whole(n.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		if ParentOf(l) == parent {
			return l, nil
		}
	}
	return nil, nil
}

// simulatedAlias begins the alias of an interface that stands for a simulated NIC; its
// PCI address follows. Such an interface has no parent device.
const simulatedAlias = "topodra-simulated/"

// SimulatedAlias is the alias of the interface that stands for the NIC at a PCI
// address of a simulated machine.
func SimulatedAlias(address string) string { return simulatedAlias + address }

// ParentOf names the device below an interface, "pci/0000:1d:00.0" or "virtio/virtio3",
// and "" for virtual interfaces. It stays the same in every network namespace and
// whatever the interface is called (IFLA_PARENT_DEV_NAME, Linux 5.14 and later).
func ParentOf(l netlink.Link) string {
	a := l.Attrs()
	switch {
	case a.ParentDev != "":
		return a.ParentDevBus + "/" + a.ParentDev
	case strings.HasPrefix(a.Alias, simulatedAlias):
		return a.Alias
	}
	return ""
}

// move puts an interface of the namespace into another one under a name. The kernel
// moves it first, under the new name if its present one is taken there, and renames it
// then: after EEXIST it may be on either side.
func (n *namespace) move(l netlink.Link, to *namespace, name string) error {
	socket, err := nl.GetNetlinkSocketAt(n.fd, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer socket.Close()
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(l.Attrs().Index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(to.fd))))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// rdma returns the RDMA device with a name or, should it have been renamed, with a
// node GUID as netlink prints it; nil if it is not in the namespace.
func (n *namespace) rdma(name, guid string) (*netlink.RdmaLink, error) {
	links, err := netdev.Whole(n.RdmaLinkList)
	if err != nil {
		return nil, fmt.Errorf("list RDMA devices: %w", err)
	}
	return pickRDMA(links, name, guid), nil
}

// pickRDMA prefers the name. A GUID counts if one device alone has it: virtual functions
// that nobody gave one all have zero.
func pickRDMA(links []*netlink.RdmaLink, name, guid string) *netlink.RdmaLink {
	var renamed []*netlink.RdmaLink
	for _, l := range links {
		switch {
		case l.Attrs.Name == name:
			return l
		case strings.Trim(guid, "0:") != "" && l.Attrs.NodeGuid == guid:
			renamed = append(renamed, l)
		}
	}
	if len(renamed) == 1 {
		return renamed[0]
	}
	return nil
}

// sysctls are the settings of an interface that the kernel resets when it changes its
// namespace.
// The order counts: addr_gen_mode 2 and 3 want a secret.
var sysctls = []string{
	"ipv4/arp_announce", "ipv4/arp_filter", "ipv4/arp_ignore", "ipv4/rp_filter", "ipv4/accept_local",
	"ipv6/disable_ipv6", "ipv6/accept_ra", "ipv6/autoconf", "ipv6/stable_secret", "ipv6/addr_gen_mode",
}

func sysctlFile(key, ifName string) string {
	family, name, _ := strings.Cut(key, "/")
	return filepath.Join("/proc/sys/net", family, "conf", ifName, name)
}

func (n *namespace) readSysctls(ifName string) (map[string]string, error) {
	values := map[string]string{}
	err := n.do(func() error {
		for _, key := range sysctls {
			// One that the kernel lacks, as all of ipv6 may be, is left out.
			if value, err := os.ReadFile(sysctlFile(key, ifName)); err == nil {
				values[key] = strings.TrimSpace(string(value))
			}
		}
		return nil
	})
	return values, err
}

// writeSysctls sets what differs.
func (n *namespace) writeSysctls(ifName string, values map[string]string) error {
	return n.do(func() error {
		var errs []error
		for _, key := range sysctls {
			value, ok := values[key]
			file := sysctlFile(key, ifName)
			old, err := os.ReadFile(file)
			// stable_secret cannot be read before it is set (EIO).
			if !ok || err == nil && strings.TrimSpace(string(old)) == value || errors.Is(err, iofs.ErrNotExist) {
				continue
			}
			if err := os.WriteFile(file, []byte(value), 0); err != nil {
				errs = append(errs, fmt.Errorf("sysctl net.%s of %s: %w", strings.ReplaceAll(key, "/", "."), ifName, err))
			}
		}
		return errors.Join(errs...)
	})
}
