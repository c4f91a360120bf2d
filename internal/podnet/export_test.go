package podnet

// SetStep replaces what happens at each step of a move.
func SetStep(f func(string)) { step = f }

// State of an interface as Plan captures it.
func (m *Mover) CaptureHost(parent string) (*State, error) { return capture(parent, "") }

// CapturePod is CaptureHost for the network namespace of a pod.
func CapturePod(parent, netns string) (*State, error) { return capture(parent, netns) }

func capture(parent, path string) (*State, error) {
	ns, err := sandboxNamespace(path)
	if err != nil {
		return nil, err
	}
	defer ns.close()
	l, err := ns.find(parent)
	if err != nil || l == nil {
		return nil, err
	}
	s, err := ns.capture(l)
	return &s, err
}

// BareMove is the system call below all of this.
func BareMove(name, netns string) error {
	ns, err := podNamespace(netns)
	if err != nil {
		return err
	}
	defer ns.close()
	host, err := hostNamespace()
	if err != nil {
		return err
	}
	defer host.close()
	l, err := host.LinkByName(name)
	if err != nil {
		return err
	}
	return host.LinkSetNsFd(l, int(ns.fd))
}
