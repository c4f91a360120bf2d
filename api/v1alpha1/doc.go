// Package v1alpha1 holds what users write and read: the opaque configuration of
// devices in a claim or a device class, the driver's configuration file, and
// the placement record on pods.
//
// Everything that users write is decoded strictly: apiVersion and kind must be
// there, and an unknown or repeated field is an error that names its path.
package v1alpha1

// Group is the API group, and at the same time the name of the DRA driver.
const (
	Group      = "topodra.dev"
	Version    = "v1alpha1"
	APIVersion = Group + "/" + Version
)

// Unknown stands where a record has a field for a fact that nobody could tell.
// It is never written as a label.
const Unknown = "unknown"
