package v1alpha1

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/topodra/topodra/internal/pci"
)

// DriverConfigKind is the kind of the driver's configuration file.
const DriverConfigKind = "DriverConfig"

// DeviceKind is a kind of device that the driver publishes; it is the value of
// the attribute topodra.dev/type.
type DeviceKind string

// Kinds of devices.
const (
	GPUKind DeviceKind = "gpu"
	NICKind DeviceKind = "nic"

	// PairKind is one GPU with its share of the NICs nearest to it.
	PairKind DeviceKind = "pair"
)

// DeviceKinds lists all kinds.
var DeviceKinds = []DeviceKind{PairKind, GPUKind, NICKind}

// DriverConfig is the driver's configuration file. Every field may be absent.
type DriverConfig struct {
	metav1.TypeMeta `json:",inline"`

	// Devices are the kinds of devices to publish. Default: pair, gpu and nic.
	Devices []DeviceKind `json:"devices,omitempty"`

	// Pairs say what a pair may be.
	Pairs Pairs `json:"pairs,omitempty"`

	// NICSelector is a CEL expression; NICs for which it is false are not
	// published. Default: all fabric NICs.
	NICSelector string `json:"nicSelector,omitempty"`

	// AllowSoftwareRDMA publishes NICs whose RDMA device is made in software
	// (rxe, siw). For tests without RDMA hardware. Default: false.
	AllowSoftwareRDMA bool `json:"allowSoftwareRDMA,omitempty"`

	// TopologyFile is the path of a vendor's NCCL topology file, for virtual
	// machines that hide the PCIe tree. Default: none.
	TopologyFile string `json:"topologyFile,omitempty"`

	// Rails name the rail of NICs; the first rule that fits a NIC decides.
	// Default: none.
	Rails []RailRule `json:"rails,omitempty"`

	// RailRecords is a directory with topograph's record of this node under the
	// node's name, as the ConfigMap topograph-nic-rails gives when it is mounted.
	// Rules come before it. Default: none.
	RailRecords string `json:"railRecords,omitempty"`

	// NodeLabels tell where the topology keys of pods are read.
	NodeLabels NodeLabels `json:"nodeLabels,omitempty"`

	// Preflight says what to do about what is found wrong with a device when a claim
	// is prepared. Default: see PreflightChecks.
	Preflight map[PreflightCheck]PreflightLevel `json:"preflight,omitempty"`
}

// Pairs say what a pair of a GPU and its NICs may be.
type Pairs struct {
	// Farthest is the farthest distance that still makes a pair: PIX, PXB, PHB,
	// NODE or SYS. Default: NODE, so that Grace works, where a GPU and its NIC
	// never share a host bridge.
	Farthest string `json:"farthest,omitempty"`
	// NICs bounds the NICs of a pair; 0 means all of a GPU's share. Default: 0.
	NICs int `json:"nics,omitempty"`
	// NICSharing is how many pairs may use one NIC at a time. Default: 1.
	NICSharing int `json:"nicSharing,omitempty"`
}

// Distances are the names of distances, nearest first.
var Distances = []string{"PIX", "PXB", "PHB", "NODE", "SYS"}

// MaxNICSharing bounds NICSharing; more pods than this on one NIC is a mistake.
const MaxNICSharing = 64

func (p Pairs) validate(fault func(format string, args ...any)) {
	if !slices.Contains(Distances, p.Farthest) {
		fault("pairs.farthest: %q is no distance, want one of %s", p.Farthest, strings.Join(Distances, ", "))
	}
	if p.NICs < 0 {
		fault("pairs.nics: %d is negative; 0 means all of a GPU's share", p.NICs)
	}
	if p.NICSharing < 1 || p.NICSharing > MaxNICSharing {
		fault("pairs.nicSharing: %d pairs cannot use one NIC, want 1 to %d", p.NICSharing, MaxNICSharing)
	}
}

// RailRule puts the NICs that fit it on a rail. Exactly one of Address,
// Interface and CIDR is set.
type RailRule struct {
	Rail int `json:"rail"` // 0 and up

	Address   string `json:"address,omitempty"`   // PCI address, "0000:1d:00.0"
	Interface string `json:"interface,omitempty"` // name of the network interface
	CIDR      string `json:"cidr,omitempty"`      // an address of the interface lies in it
}

// NodeLabels are labels of the node that become topology keys of pods.
type NodeLabels struct {
	// Rack are label keys; the first that the node has gives the rack.
	// Default: topology.kubernetes.io/rack.
	Rack []string `json:"rack,omitempty"`
}

// DefaultDriverConfig returns the configuration of a driver without a file.
func DefaultDriverConfig() DriverConfig {
	return DriverConfig{
		TypeMeta:   metav1.TypeMeta{APIVersion: APIVersion, Kind: DriverConfigKind},
		Devices:    []DeviceKind{PairKind, GPUKind, NICKind},
		Pairs:      Pairs{Farthest: "NODE", NICSharing: 1},
		NodeLabels: NodeLabels{Rack: []string{"topology.kubernetes.io/rack"}},
	}
}

// ParseDriverConfig reads the driver's configuration file (YAML or JSON), fills
// in defaults and validates it.
func ParseDriverConfig(data []byte) (DriverConfig, error) {
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return DriverConfig{}, fmt.Errorf("driver configuration: %w", err)
	}
	config := DefaultDriverConfig()
	config.TypeMeta = metav1.TypeMeta{}
	if err := decodeStrict(asJSON, &config, ""); err != nil {
		return DriverConfig{}, fmt.Errorf("driver configuration: %w", err)
	}
	if err := config.Validate(); err != nil {
		return DriverConfig{}, fmt.Errorf("driver configuration: %w", err)
	}
	return config, nil
}

// Validate returns one error per fault, each with the path of the field.
func (c DriverConfig) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	if err := checkType(c.TypeMeta, "", DriverConfigKind); err != nil {
		faults = append(faults, err)
	}
	if len(c.Devices) == 0 {
		fault("devices: nothing would be published, want some of %s, %s and %s", PairKind, GPUKind, NICKind)
	}
	for i, kind := range c.Devices {
		if kind != PairKind && kind != GPUKind && kind != NICKind {
			fault("devices[%d]: %q is not known, want %s, %s or %s", i, kind, PairKind, GPUKind, NICKind)
		}
		if slices.Contains(c.Devices[:i], kind) {
			fault("devices[%d]: %q is listed twice", i, kind)
		}
	}
	c.Pairs.validate(fault)
	if c.NICSelector != "" && strings.TrimSpace(c.NICSelector) == "" {
		fault("nicSelector: only blanks; leave it out to publish all fabric NICs")
	}
	for field, path := range map[string]string{"topologyFile": c.TopologyFile, "railRecords": c.RailRecords} {
		if path != "" && !strings.HasPrefix(path, "/") {
			fault("%s: %q is not an absolute path", field, path)
		}
	}
	for i, rule := range c.Rails {
		if err := rule.validate(); err != nil {
			fault("rails[%d]%w", i, err)
		}
	}
	for i, key := range c.NodeLabels.Rack {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			fault("nodeLabels.rack[%d]: %q is not a label key: %s", i, key, strings.Join(problems, "; "))
		}
	}
	validatePreflight(c.Preflight, fault)
	return errors.Join(faults...)
}

// validate returns an error whose text continues the path of the rule.
func (r RailRule) validate() error {
	set := 0
	for _, s := range []string{r.Address, r.Interface, r.CIDR} {
		if s != "" {
			set++
		}
	}
	switch {
	case set != 1:
		return fmt.Errorf(": %d of address, interface and cidr are set, want exactly one", set)
	case r.Rail < 0:
		return fmt.Errorf(".rail: %d is negative, rails are numbered from 0", r.Rail)
	case r.Address != "":
		if _, err := pci.ParseAddress(r.Address); err != nil {
			return fmt.Errorf(".address: %w", err)
		}
	case r.CIDR != "":
		if _, err := netip.ParsePrefix(r.CIDR); err != nil {
			return fmt.Errorf(".cidr: %q is not a network in CIDR form: %w", r.CIDR, err)
		}
	}
	return nil
}
