package v1alpha1

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// decodeStrict reads one JSON object into a type of this package. prefix is put
// before the field paths of errors.
func decodeStrict(data []byte, into any, prefix string) error {
	strict, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		if prefix != "" {
			return fmt.Errorf("%s: %w", prefix, err)
		}
		return err
	}
	faults := make([]error, 0, len(strict))
	for _, fault := range strict {
		faults = append(faults, atPath(prefix, fault))
	}
	return errors.Join(faults...)
}

// atPath turns the library's `unknown field "a.b"` into "prefix.a.b: unknown field".
func atPath(prefix string, fault error) error {
	var field kjson.FieldError
	if !errors.As(fault, &field) {
		return fmt.Errorf("%s: %w", prefix, fault)
	}
	path := field.FieldPath()
	what, _, _ := strings.Cut(field.Error(), " \"")
	return fmt.Errorf("%s: %s", join(prefix, path), what)
}

func join(prefix, path string) string {
	if prefix == "" {
		return path
	}
	return prefix + "." + path
}

// checkType returns an error unless the object says that it is one of kinds in
// our version.
func checkType(t metav1.TypeMeta, prefix string, kinds ...string) error {
	if t.APIVersion != APIVersion {
		return fmt.Errorf("%s: %q is not known, want %q", join(prefix, "apiVersion"), t.APIVersion, APIVersion)
	}
	if !slices.Contains(kinds, t.Kind) {
		return fmt.Errorf("%s: %q is not known, want %s", join(prefix, "kind"), t.Kind, strings.Join(kinds, " or "))
	}
	return nil
}
