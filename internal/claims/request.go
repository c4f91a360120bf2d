package claims

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/topodra/topodra/api/v1alpha1"
)

// request is the part of a claim that this driver has to prepare, checked.
type request struct {
	uid     types.UID
	name    types.NamespacedName
	pods    []v1alpha1.PodRef
	results []result

	// fingerprint changes whenever the allocation asks for something else.
	fingerprint string
}

// result is one allocation result of ours with the configuration it gets.
type result struct {
	resourceapi.DeviceRequestAllocationResult
	configs []appliedConfig // in order of precedence: the last one wins
}

type appliedConfig struct {
	path   string // in the claim object
	config v1alpha1.DeviceConfig
}

func (r result) adminAccess() bool { return r.AdminAccess != nil && *r.AdminAccess }

// nic returns the configuration of a NIC and where it is in the claim; it has been
// checked that all fit.
func (r result) nic() (config v1alpha1.NICConfig, path string) {
	for _, c := range r.configs {
		if nic, ok := c.config.(*v1alpha1.NICConfig); ok {
			config, path = *nic, c.path
		}
	}
	return config, path
}

// fits returns an error when a configuration is for another kind of device.
func (r result) fits(kind v1alpha1.DeviceKind) error {
	for _, c := range r.configs {
		if kind != v1alpha1.PairKind && c.config.DeviceKind() != kind { // a pair has both
			return fmt.Errorf("%s: a configuration for a %s does not fit request %q, which got the %s %s: name the requests it is for",
				c.path, c.config.DeviceKind(), r.Request, kind, r.Device)
		}
	}
	return nil
}

// uidPattern keeps file names safe; the API server makes UUIDs.
var uidPattern = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,63}$`)

func checkUID(uid types.UID) error {
	if !uidPattern.MatchString(string(uid)) {
		return fmt.Errorf("claim UID %q is not a UUID", uid)
	}
	return nil
}

// parse checks a claim. Its errors do not go away by trying again.
func parse(claim *resourceapi.ResourceClaim, driver, pool string) (request, error) {
	r := request{uid: claim.UID, name: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}}
	if err := checkUID(claim.UID); err != nil {
		return r, err
	}
	if claim.Status.Allocation == nil {
		return r, errors.New("claim is not allocated")
	}
	for _, consumer := range claim.Status.ReservedFor {
		// A pod group can be a consumer too; its pods are not known here.
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			r.pods = append(r.pods, v1alpha1.PodRef{Namespace: claim.Namespace, Name: consumer.Name, UID: consumer.UID})
		}
	}
	devices := claim.Status.Allocation.Devices
	configs, raw, err := ourConfigs(devices.Config, driver)
	if err != nil {
		return r, err
	}
	for _, res := range devices.Results {
		if res.Driver != driver {
			continue
		}
		if res.Pool != pool {
			return r, fmt.Errorf("device %s is allocated from pool %q, but this node has pool %q only", res.Device, res.Pool, pool)
		}
		r.results = append(r.results, result{DeviceRequestAllocationResult: res, configs: applied(configs, res)})
	}
	all := make([]resourceapi.DeviceRequestAllocationResult, 0, len(r.results))
	for _, res := range r.results {
		all = append(all, res.DeviceRequestAllocationResult)
	}
	content, err := json.Marshal([]any{all, raw})
	if err != nil {
		return r, err
	}
	sum := sha256.Sum256(content)
	r.fingerprint = hex.EncodeToString(sum[:])
	return r, nil
}

// decodedConfig is one configuration of ours with what the matching rule needs.
type decodedConfig struct {
	appliedConfig
	allocation resourceapi.DeviceAllocationConfiguration
}

// ourConfigs decodes every configuration of this driver, those that apply to
// none of our results too: a mistake must not hide until it matters. Class
// configurations come first, so that those of the claim win.
func ourConfigs(all []resourceapi.DeviceAllocationConfiguration, driver string) (configs []decodedConfig, raw []resourceapi.DeviceAllocationConfiguration, err error) {
	var faults []error
	for _, source := range []resourceapi.AllocationConfigSource{resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim} {
		for i, c := range all {
			if c.Source != source || c.Opaque == nil || c.Opaque.Driver != driver {
				continue
			}
			path := fmt.Sprintf("status.allocation.devices.config[%d] (%s).opaque.parameters", i, source)
			config, err := v1alpha1.DecodeDeviceConfig(c.Opaque.Parameters, path)
			if err != nil {
				faults = append(faults, err)
				continue
			}
			configs = append(configs, decodedConfig{appliedConfig{path, config}, c})
			raw = append(raw, c)
		}
	}
	return configs, raw, errors.Join(faults...)
}

// applied selects the configurations of one result by the rule of Kubernetes.
func applied(configs []decodedConfig, res resourceapi.DeviceRequestAllocationResult) []appliedConfig {
	var out []appliedConfig
	for _, c := range configs {
		if len(resourceclaim.ConfigForResult([]resourceapi.DeviceAllocationConfiguration{c.allocation}, res)) > 0 {
			out = append(out, c.appliedConfig)
		}
	}
	return out
}
