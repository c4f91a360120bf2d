package template

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"
)

// Decode reads a ResourceClaimTemplate. Fields that the API does not know are
// errors.
func Decode(text []byte) (*resourceapi.ResourceClaimTemplate, error) {
	var object resourceapi.ResourceClaimTemplate
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		return nil, fmt.Errorf("ResourceClaimTemplate: %w", err)
	}
	return &object, nil
}

// JSON returns the template without its comments.
func JSON(text []byte) ([]byte, error) {
	var object any
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		return nil, err
	}
	out, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(out, '\n'), nil
}

// Check is the API server's validation of a new template, as far as it can be done
// without one: the rules that come with the API's types, then the CEL expressions
// with the scheduler's compiler, for the version that the types are from.
func Check(t *resourceapi.ResourceClaimTemplate) error {
	t = t.DeepCopy()
	setDefaults(&t.Spec.Spec)
	path := field.NewPath("spec")
	faults := resourceapi.Validate_ResourceClaimTemplateSpec(context.Background(), operation.Operation{Type: operation.Create}, path, &t.Spec, nil)
	devices := t.Spec.Spec.Devices
	at := path.Child("spec", "devices")
	for i, r := range devices.Requests {
		at := at.Child("requests").Index(i)
		if r.Exactly != nil {
			faults = append(faults, checkSelectors(at.Child("exactly"), r.Exactly.Selectors)...)
		}
		for j, sub := range r.FirstAvailable {
			faults = append(faults, checkSelectors(at.Child("firstAvailable").Index(j), sub.Selectors)...)
		}
	}
	return faults.ToAggregate()
}

// setDefaults is what the API server fills in before it validates.
func setDefaults(spec *resourceapi.ResourceClaimSpec) {
	set := func(mode *resourceapi.DeviceAllocationMode, count *int64) {
		if *mode == "" {
			*mode = resourceapi.DeviceAllocationModeExactCount
		}
		if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
			*count = 1
		}
	}
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if r.Exactly != nil {
			set(&r.Exactly.AllocationMode, &r.Exactly.Count)
		}
		for j := range r.FirstAvailable {
			set(&r.FirstAvailable[j].AllocationMode, &r.FirstAvailable[j].Count)
		}
	}
}

func checkSelectors(at *field.Path, selectors []resourceapi.DeviceSelector) (faults field.ErrorList) {
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	newExpressions := environment.NewExpressions
	for i, s := range selectors {
		at := at.Child("selectors").Index(i).Child("cel", "expression")
		if s.CEL == nil {
			faults = append(faults, field.Required(at, ""))
			continue
		}
		result := compiler.CompileCELExpression(s.CEL.Expression, cel.Options{EnvType: &newExpressions})
		switch {
		case len(s.CEL.Expression) > resourceapi.CELSelectorExpressionMaxLength:
			faults = append(faults, field.TooLong(at, "", resourceapi.CELSelectorExpressionMaxLength))
		case result.Error != nil:
			faults = append(faults, field.Invalid(at, s.CEL.Expression, strings.TrimSpace(result.Error.Detail)))
		case result.MaxCost > resourceapi.CELSelectorExpressionMaxCost:
			faults = append(faults, field.Forbidden(at, fmt.Sprintf("costs up to %d, the API takes %d", result.MaxCost, resourceapi.CELSelectorExpressionMaxCost)))
		}
	}
	return faults
}
