package report

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Format is a way of showing a report. Equal reports give equal bytes.
type Format struct {
	Name   string
	Render func(io.Writer, *Report) error
}

// Formats are all formats, the default first.
var Formats = []Format{
	{"matrix", Text{}.Render},
	{"wide", Text{Wide: true}.Render},
	{"json", JSON},
	{"yaml", YAML},
	{"dot", DOT},
	{"svg", SVG},
}

// ParseFormat finds a format by name; its error lists all names.
func ParseFormat(name string) (Format, error) {
	names := make([]string, len(Formats))
	for i, f := range Formats {
		if f.Name == name {
			return f, nil
		}
		names[i] = f.Name
	}
	return Format{}, fmt.Errorf("output format %q is none of %s", name, strings.Join(names, ", "))
}

// JSON writes the stable form that docs/topo.md documents.
func JSON(w io.Writer, r *Report) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

// YAML writes the fields of JSON, in their order, as YAML. The usual way over
// maps (sigs.k8s.io/yaml) sorts keys by numbers inside them, which is no order at
// all for hexadecimal addresses: the result differs from run to run.
func YAML(w io.Writer, r *Report) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil { // JSON is YAML
		return err
	}
	blockStyle(&document)
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(&document); err != nil {
		return err
	}
	return encoder.Close()
}

// fieldName is a key that no YAML version takes for anything but a string.
var fieldName = regexp.MustCompile(`^[a-z]{4,}[A-Za-z]*$`)

// blockStyle turns the braces of JSON into indentation. Values and addresses keep
// their quotes: to YAML 1.1, "0000:48:00.0" without them is a number.
func blockStyle(n *yaml.Node) {
	if n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode {
		n.Style = 0
	}
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && fieldName.MatchString(child.Value) {
			child.Style = 0
		}
		blockStyle(child)
	}
}
