package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"path"
)

// image is what a container needs to know beside its files.
type image struct {
	Ref, Arch       string
	Env             []string
	Entrypoint, Cmd []string
}

// Media types and file names below are of the OCI image specification 1.1.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type config struct {
	platform
	Config struct {
		Env        []string
		Entrypoint []string `json:",omitempty"`
		Cmd        []string `json:",omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        *descriptor  `json:"config,omitempty"`
	Layers        []descriptor `json:"layers,omitempty"`
	Manifests     []descriptor `json:"manifests,omitempty"`
}

// write writes the OCI layout. containerd takes the reference from the annotation of the manifest.
func (img image) write(w io.Writer, l *layer) error {
	files, err := l.close()
	if err != nil {
		return err
	}
	target := platform{Architecture: img.Arch, OS: "linux"}

	c := config{platform: target}
	c.Config.Env, c.Config.Entrypoint, c.Config.Cmd = img.Env, img.Entrypoint, img.Cmd
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{digest(files)}

	out := layout{tar: tar.NewWriter(w)}
	configBlob := out.blob(typeConfig, out.json(c))
	manifestBlob := out.blob(typeManifest, out.json(manifest{
		SchemaVersion: 2, MediaType: typeManifest,
		Config: &configBlob, Layers: []descriptor{out.blob(typeLayer, files)},
	}))
	manifestBlob.Platform = &target
	manifestBlob.Annotations = map[string]string{"io.containerd.image.name": img.Ref}
	out.file("index.json", out.json(manifest{
		SchemaVersion: 2, MediaType: typeIndex, Manifests: []descriptor{manifestBlob},
	}))
	out.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	if out.err == nil {
		out.err = out.tar.Close()
	}
	return out.err
}

// layout is the tar of an OCI layout being written. The first error sticks.
type layout struct {
	tar *tar.Writer
	err error
}

func (o *layout) file(name string, content []byte) {
	if o.err != nil {
		return
	}
	if o.err = o.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}); o.err == nil {
		_, o.err = o.tar.Write(content)
	}
}

func (o *layout) blob(mediaType string, content []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digest(content), Size: len(content)}
	o.file(path.Join("blobs/sha256", d.Digest[len("sha256:"):]), content)
	return d
}

func (o *layout) json(v any) []byte {
	content, err := json.Marshal(v)
	if err != nil && o.err == nil {
		o.err = err
	}
	return content
}

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }
