package simulate

import "github.com/topodra/topodra/internal/pci"

// fabricRoles are the roles of NICs that carry the traffic of jobs; "" is a NIC
// of which nothing is known.
var fabricRoles = map[string]bool{"": true, "compute": true}

// Roles returns why NICs must not be handed out. On hardware only the
// administrator knows, through the nicSelector; a machine file says it.
func (m *Machine) Roles() map[pci.Address]string {
	roles := map[pci.Address]string{}
	for _, n := range m.NICs {
		if n.Address == nil || fabricRoles[n.Role] {
			continue
		}
		if addr, err := pci.ParseAddress(*n.Address); err == nil {
			roles[addr] = "role in the machine file: " + n.Role
		}
	}
	return roles
}
