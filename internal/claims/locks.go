package claims

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// locks is one mutex per claim. Waiters are woken by the unlocking call, none
// of them polls, and claims never wait for each other.
type locks struct {
	mu     sync.Mutex
	claims map[types.UID]*claimLock
}

type claimLock struct {
	users int           // holder and waiters; guarded by locks.mu
	held  chan struct{} // has one element while locked
}

// lock returns the function that unlocks the claim again.
func (l *locks) lock(ctx context.Context, uid types.UID) (func(), error) {
	c := l.enter(uid)
	select {
	case c.held <- struct{}{}:
		return func() { <-c.held; l.leave(uid, c) }, nil
	case <-ctx.Done():
		l.leave(uid, c)
		return nil, ctx.Err()
	}
}

// tryLock is lock without waiting; ok is false when the claim is locked.
func (l *locks) tryLock(uid types.UID) (unlock func(), ok bool) {
	c := l.enter(uid)
	select {
	case c.held <- struct{}{}:
		return func() { <-c.held; l.leave(uid, c) }, true
	default:
		l.leave(uid, c)
		return nil, false
	}
}

func (l *locks) enter(uid types.UID) *claimLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.claims == nil {
		l.claims = map[types.UID]*claimLock{}
	}
	c := l.claims[uid]
	if c == nil {
		c = &claimLock{held: make(chan struct{}, 1)}
		l.claims[uid] = c
	}
	c.users++
	return c
}

func (l *locks) leave(uid types.UID, c *claimLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.users--; c.users == 0 {
		delete(l.claims, uid)
	}
}
