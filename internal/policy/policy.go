// Package policy is what the administrator says about a machine beyond what it
// shows: the driver's configuration, compiled and applied to snapshots.
package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/machine"
	"github.com/topodra/topodra/internal/nccl"
	"github.com/topodra/topodra/internal/pci"
	nodeslices "github.com/topodra/topodra/internal/slices"
	"github.com/topodra/topodra/internal/topograph"
	"github.com/topodra/topodra/internal/topology"
)

// Policy is a compiled configuration.
type Policy struct {
	// Publish says which devices to publish.
	Publish nodeslices.Options

	selector *nodeslices.NICSelector
	roles    map[pci.Address]string
	file     *nccl.File
	// railRecord is read at each scan: topograph may write it any time.
	railRecord string
	config     topology.Config
}

// New compiles a configuration. roles say why NICs of a simulated machine are not
// fabric; nodeName is the node's name in topograph's records. Errors name the field,
// and the position where an expression or a file is at fault.
func New(c v1alpha1.DriverConfig, roles map[pci.Address]string, nodeName string) (*Policy, error) {
	selector, err := nodeslices.NewNICSelector(c.NICSelector)
	if err != nil {
		return nil, err
	}
	p := &Policy{Publish: nodeslices.Options{Kinds: c.Devices, NICSharing: c.Pairs.NICSharing}, selector: selector, roles: roles}
	p.config.AllowSoftwareRDMA = c.AllowSoftwareRDMA
	p.config.Pairs.NICs = c.Pairs.NICs
	if p.config.Pairs.Farthest, err = topology.ParseClass(c.Pairs.Farthest); err != nil {
		return nil, fmt.Errorf("pairs.farthest: %w", err)
	}
	if c.RailRecords != "" {
		p.railRecord = filepath.Join(c.RailRecords, nodeName)
	}
	for i, rule := range c.Rails {
		r := topology.RailRule{Rail: rule.Rail, Interface: rule.Interface}
		var addrErr, cidrErr error
		if rule.Address != "" {
			r.Address = new(pci.Address)
			*r.Address, addrErr = pci.ParseAddress(rule.Address)
		}
		if rule.CIDR != "" {
			r.Subnet, cidrErr = netip.ParsePrefix(rule.CIDR)
		}
		if err := errors.Join(addrErr, cidrErr); err != nil {
			return nil, fmt.Errorf("rails[%d]: %w", i, err)
		}
		p.config.Rails.Rules = append(p.config.Rails.Rules, r)
	}
	if c.TopologyFile != "" {
		file, err := os.Open(c.TopologyFile)
		if err != nil {
			return nil, fmt.Errorf("topologyFile: %w", err)
		}
		defer file.Close()
		if p.file, err = nccl.Parse(file, c.TopologyFile); err != nil {
			return nil, fmt.Errorf("topologyFile: %w", err)
		}
	}
	return p, nil
}

// Apply computes the topology of a snapshot under the policy. The errors name what
// the policy says and the machine contradicts; the topology is valid.
func (p *Policy) Apply(ctx context.Context, s *machine.Snapshot) (*topology.Topology, []error) {
	config := p.config
	var errs []error
	config.Excluded, errs = p.selector.Excluded(ctx, s)
	if config.Excluded == nil {
		config.Excluded = map[pci.Address]string{}
	}
	maps.Copy(config.Excluded, p.roles)
	if p.file != nil {
		var problems []string
		config.File, problems = p.file.Places(s.PCI)
		for _, problem := range problems {
			errs = append(errs, errors.New(problem))
		}
	}
	if p.railRecord != "" {
		rails, problems := readRails(p.railRecord)
		config.Rails.Discovered = rails
		errs = append(errs, problems...)
	}
	return topology.Compute(s, config), errs
}

// readRails reads topograph's record of this node. Its node UID is not compared:
// the agent may not have been able to read the node yet.
func readRails(path string) (map[pci.Address]int, []error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, []error{fmt.Errorf("rail record %s is not there yet: rails come from subnets or from the order of NICs until it is", path)}
	}
	if err != nil {
		return nil, []error{fmt.Errorf("rail record: %w", err)}
	}
	return topograph.Rails(data, "")
}
