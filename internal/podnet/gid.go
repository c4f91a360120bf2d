package podnet

import (
	"time"

	"github.com/topodra/topodra/internal/rdma"
	"github.com/topodra/topodra/internal/sysfs"
)

// The kernel fills the table of GIDs in the background when an interface gets an address.
const (
	gidTries = 10
	gidPause = 20 * time.Millisecond
)

// gidIndex returns the index of the RoCEv2 GID that belongs to the addresses of NICs in
// the network namespace of a sandbox, "" for the host's. There is none if the NICs
// differ in it: libraries take one index for all.
func gidIndex(netns string, plans []Plan) (index int, ok bool, err error) {
	var ns *namespace
	if netns == "" {
		ns, err = hostNamespace()
	} else {
		ns, err = podNamespace(netns)
	}
	if err != nil {
		return 0, false, err
	}
	defer ns.close()
	err = ns.sysfs(func(dir string) error {
		for i := range plans {
			p := &plans[i]
			if p.Port == 0 || !p.GIDIndex {
				continue
			}
			found, have, err := gidOf(sysfs.Dir(dir), p)
			if err != nil || !have || ok && found != index {
				ok = false
				return err
			}
			index, ok = found, true
		}
		return nil
	})
	return index, ok, err
}

func gidOf(root sysfs.FS, p *Plan) (index int, ok bool, err error) {
	for range gidTries {
		gids, err := rdma.GIDs(root, p.Uses, p.Port)
		if err != nil {
			return 0, false, err
		}
		if index, ok = rdma.BestRoCEv2(gids, p.Pod.Name, p.Pod.addrs()); ok {
			return index, true, nil
		}
		time.Sleep(gidPause)
	}
	return 0, false, nil
}
