package sysfs

import (
	"path"
	"sync"
)

// Recorder is a sysfs root that notes everything that is read from another one.
type Recorder struct {
	from source

	mu    sync.Mutex
	nodes map[string]Node
}

// Record returns a recorder and the root to read from.
func Record(f FS) (*Recorder, FS) {
	r := &Recorder{from: f.source, nodes: map[string]Node{}}
	return r, FS{r}
}

// Nodes returns what was read, for Memory: every file and link under the name by
// which it was asked for, and an empty file for a name that was only listed.
func (r *Recorder) Nodes() map[string]Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	nodes := make(map[string]Node, len(r.nodes))
	parents := map[string]bool{}
	for name, n := range r.nodes {
		if !n.listed {
			nodes[name] = n
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			parents[dir] = true
		}
	}
	for name, n := range r.nodes {
		if n.listed && !parents[name] {
			nodes[name] = Node{}
		}
	}
	return nodes
}

func (r *Recorder) note(name string, n Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.nodes[name]; n.listed && ok && !old.listed {
		return
	}
	r.nodes[name] = n
}

func (r *Recorder) read(name string, limit int) ([]byte, error) {
	b, err := r.from.read(name, limit)
	if err == nil {
		r.note(name, Node{Data: b})
	}
	return b, err
}

func (r *Recorder) readLink(name string) (string, error) {
	link, err := r.from.readLink(name)
	if err == nil {
		r.note(name, Node{Link: link})
	}
	return link, err
}

func (r *Recorder) list(name string) ([]string, error) {
	names, err := r.from.list(name)
	for _, n := range names {
		r.note(path.Join(name, n), Node{listed: true})
	}
	return names, err
}
