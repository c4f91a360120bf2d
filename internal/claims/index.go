package claims

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// index is the journal in memory: who holds which device, and which claims a
// pod has. All methods are safe for concurrent use.
type index struct {
	mu      sync.Mutex
	records map[types.UID]*record
	// holders has more claims under a device than may share it only while two
	// instances of the driver find out that both want it.
	holders map[string]map[types.UID]holder
	keys    map[types.UID]map[string]bool // holders the other way round
	byPod   map[types.UID]map[types.UID]bool
}

// holder is a claim that holds a device, which at most shares claims may.
type holder struct {
	name   types.NamespacedName
	shares int
}

// sharesMark separates a device's name from how many claims may share it in a hold
// key: "nic-0000-1d-00-0~2". No device name has it.
const sharesMark = "~"

func splitKey(key string) (device string, shares int) {
	device, count, ok := strings.Cut(key, sharesMark)
	if n, err := strconv.Atoi(count); ok && err == nil && n > 1 {
		return device, n
	}
	return device, 1
}

func newIndex() *index {
	return &index{
		records: map[types.UID]*record{},
		holders: map[string]map[types.UID]holder{},
		keys:    map[types.UID]map[string]bool{},
		byPod:   map[types.UID]map[types.UID]bool{},
	}
}

func (x *index) get(uid types.UID) *record {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.records[uid]
}

func (x *index) claims() []types.UID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.records))
}

// prepared counts the claims that are prepared.
func (x *index) prepared() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := 0
	for _, r := range x.records {
		if r.prepared {
			n++
		}
	}
	return n
}

// ofPod returns the prepared claims of a pod by name.
func (x *index) ofPod(pod types.UID) []*record {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []*record
	for uid := range x.byPod[pod] {
		if r := x.records[uid]; r.prepared {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *record) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(string(a.UID), string(b.UID)))
	})
	return out
}

// heldError says that another claim has a device. The holder goes away when its
// pod ends, so it is worth waiting for a moment.
type heldError struct {
	key    string
	uid    types.UID
	holder types.NamespacedName
}

func (e *heldError) Error() string {
	return fmt.Sprintf("device %s is still held by claim %s, which was not unprepared on this node yet: wait until its pod has ended, or delete that pod",
		e.key, claimName(e.holder.Namespace, e.holder.Name, e.uid))
}

// reserve gives the keys to a claim, all or none.
func (x *index) reserve(uid types.UID, name types.NamespacedName, keys []string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.heldLocked(uid, keys); err != nil {
		return err
	}
	for _, key := range keys {
		x.holdLocked(key, uid, name)
	}
	return nil
}

// held returns a heldError if another claim has one of the keys as well.
func (x *index) held(uid types.UID, keys []string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.heldLocked(uid, keys)
}

func (x *index) heldLocked(uid types.UID, keys []string) error {
	for _, key := range keys {
		device, shares := splitKey(key)
		others := 0
		for other, h := range x.holders[device] {
			if other == uid {
				continue
			}
			if others++; others >= min(shares, h.shares) {
				return &heldError{key: device, uid: other, holder: h.name}
			}
		}
	}
	return nil
}

// set makes r all that is known about its claim and held by it.
func (x *index) set(r *record) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropLocked(r.UID)
	x.records[r.UID] = r
	for _, key := range r.holdKeys() {
		x.holdLocked(key, r.UID, types.NamespacedName{Namespace: r.Namespace, Name: r.Name})
	}
	for _, pod := range r.Pods {
		if x.byPod[pod.UID] == nil {
			x.byPod[pod.UID] = map[types.UID]bool{}
		}
		x.byPod[pod.UID][r.UID] = true
	}
}

// drop forgets a claim and everything that it holds or has reserved.
func (x *index) drop(uid types.UID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropLocked(uid)
}

func (x *index) holdLocked(key string, uid types.UID, name types.NamespacedName) {
	device, shares := splitKey(key)
	if x.holders[device] == nil {
		x.holders[device] = map[types.UID]holder{}
	}
	x.holders[device][uid] = holder{name, shares}
	if x.keys[uid] == nil {
		x.keys[uid] = map[string]bool{}
	}
	x.keys[uid][device] = true
}

func (x *index) dropLocked(uid types.UID) {
	if r := x.records[uid]; r != nil {
		for _, pod := range r.Pods {
			delete(x.byPod[pod.UID], uid)
			if len(x.byPod[pod.UID]) == 0 {
				delete(x.byPod, pod.UID)
			}
		}
	}
	delete(x.records, uid)
	for key := range x.keys[uid] {
		delete(x.holders[key], uid)
		if len(x.holders[key]) == 0 {
			delete(x.holders, key)
		}
	}
	delete(x.keys, uid)
}
