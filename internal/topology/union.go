package topology

// union is a disjoint-set forest whose sets are named by their lowest member.
type union[T comparable] struct {
	parent  map[T]T
	compare func(a, b T) int
}

func newUnion[T comparable](compare func(a, b T) int) *union[T] {
	return &union[T]{parent: map[T]T{}, compare: compare}
}

func (u *union[T]) add(x T) {
	if _, ok := u.parent[x]; !ok {
		u.parent[x] = x
	}
}

func (u *union[T]) find(x T) T {
	u.add(x)
	for u.parent[x] != x {
		u.parent[x] = u.parent[u.parent[x]]
		x = u.parent[x]
	}
	return x
}

func (u *union[T]) join(a, b T) {
	a, b = u.find(a), u.find(b)
	if u.compare(a, b) > 0 {
		a, b = b, a
	}
	u.parent[b] = a
}

func (u *union[T]) has(x T) bool {
	_, ok := u.parent[x]
	return ok
}
