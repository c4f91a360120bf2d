package keys

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const (
	nodeTTL     = time.Minute      // age from which the node is read again, when it is needed
	nodeRetry   = 10 * time.Second // pause after a failed read while there is an older one
	nodeTimeout = 5 * time.Second
)

// NodeCache reads this node's object when it is needed, and at most once a
// minute. There is no watch: it would cost every node a connection, and the
// agent a permission, for labels that hardly ever change.
type NodeCache struct {
	client kubernetes.Interface
	name   string
	now    func() time.Time

	mu   sync.Mutex
	node *Node
	next time.Time // when to read again
}

// NewNodeCache returns a cache for a node; it reads nothing yet.
func NewNodeCache(client kubernetes.Interface, name string) *NodeCache {
	return &NodeCache{client: client, name: name, now: time.Now}
}

// Get returns the node. A failure to read it again leaves the older one in use;
// an error comes only while the node has never been read.
func (c *NodeCache) Get(ctx context.Context) (Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if c.node != nil && now.Before(c.next) {
		return *c.node, nil
	}
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	object, err := c.client.CoreV1().Nodes().Get(ctx, c.name, metav1.GetOptions{})
	switch {
	case err == nil:
		c.node = &Node{Name: c.name, UID: object.UID, Labels: object.Labels}
		c.next = now.Add(nodeTTL)
	case c.node == nil:
		return Node{}, fmt.Errorf("the labels of node %s cannot be read, the agent needs \"get\" on nodes: %w", c.name, err)
	default:
		klog.FromContext(ctx).Error(err, "Node could not be read again, using what was read before", "node", c.name)
		c.next = now.Add(nodeRetry)
	}
	return *c.node, nil
}
