package podnet

// SetStep replaces what happens at each step of a move.
func SetStep(f func(string)) { step = f }

// State of an interface as Plan captures it.
func (m *Mover) CaptureHost(parent string) (*State, error) { return capture(parent, "") }

// CapturePod is CaptureHost for the network namespace of a pod.
func CapturePod(parent, netns string) (*State, error) { return capture(parent, netns) }

func capture(parent, path string) (*State, error) {
	var ns *namespace
	var err error
	if path == "" {
		ns, err = hostNamespace()
	} else {
		ns, err = podNamespace(path)
	}
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
