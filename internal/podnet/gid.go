package podnet

import (
	"slices"
	"time"

	"github.com/topodra/topodra/internal/rdma"
	"github.com/topodra/topodra/internal/sysfs"
)

// The kernel fills the table of GIDs in the background when an interface gets an address.
// All NICs of a container are waited for together: the runtime allows 2 s for everything.
const (
	gidWait  = 300 * time.Millisecond
	gidPause = 20 * time.Millisecond
)

// gids is what the RoCE NICs of a container have in its network namespace.
type gids struct {
	index   int    // of the RoCEv2 GID
	same    bool   // all NICs that want to know have it at this index
	missing []Plan // NICs without a RoCEv2 GID
}

// readGIDs looks into the network namespace of a sandbox, "" for the host's.
func readGIDs(netns string, plans []Plan) (found gids, err error) {
	ns, err := sandboxNamespace(netns)
	if err != nil {
		return found, err
	}
	defer ns.close()
	deadline := time.Now().Add(gidWait)
	err = ns.sysfs(func(dir string) error {
		var indexes []int
		for _, p := range plans {
			if p.Port == 0 {
				continue
			}
			index, ok, err := gidOf(sysfs.Dir(dir), p, deadline)
			if err != nil {
				return err
			}
			if !ok {
				found.missing = append(found.missing, p)
			}
			if p.GIDIndex {
				indexes = append(indexes, index)
			}
		}
		// Libraries take one index for all.
		indexes = slices.Compact(indexes)
		if len(indexes) == 1 && len(found.missing) == 0 {
			found.index, found.same = indexes[0], true
		}
		return nil
	})
	return found, err
}

func gidOf(root sysfs.FS, p Plan, deadline time.Time) (index int, ok bool, err error) {
	for {
		gids, err := rdma.GIDs(root, p.Uses, p.Port)
		if err != nil {
			return 0, false, err
		}
		if index, ok = rdma.BestRoCEv2(gids, p.Pod.Name, p.Pod.addrs()); ok || time.Now().After(deadline) {
			return index, ok, nil
		}
		time.Sleep(gidPause)
	}
}
