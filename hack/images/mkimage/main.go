// Command mkimage packs files of this machine into a container image: an OCI layout in a tar file, which
// "ctr images import" takes. No base image, registry or container engine is involved.
//
//	mkimage -o out.tar -ref example.org/tool:1 -entrypoint /tool ./tool:/tool ./conf.d:/etc/tool
//
// Folders are packed with everything below them, links are followed. Same input, same bytes: owners are root and times
// are zero.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
)

func main() {
	err := run(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("mkimage", flag.ContinueOnError)
	out := flags.String("o", "", "tar `file` to write")
	ref := flags.String("ref", "", "full image `reference`, as pods name it")
	arch := flags.String("arch", runtime.GOARCH, "`architecture` of the programs inside, in Go's terms")
	entrypoint := flags.String("entrypoint", "", "space separated entrypoint")
	cmd := flags.String("cmd", "", "space separated default arguments")
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	flags.Func("env", "`NAME=VALUE` in the containers' environment (repeatable)", func(s string) error {
		if name, _, ok := strings.Cut(s, "="); !ok || name == "" {
			return errors.New("want NAME=VALUE")
		}
		env = append(env, s)
		return nil
	})
	var links [][2]string
	flags.Func("link", "`TARGET=PATH`: a symbolic link at PATH (repeatable)", func(s string) error {
		target, path, ok := strings.Cut(s, "=")
		if !ok || target == "" || path == "" {
			return errors.New("want TARGET=PATH")
		}
		links = append(links, [2]string{target, path})
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || *ref == "" {
		return errors.New("-o and -ref are needed")
	}

	layer := newLayer()
	// Mount points that a runtime expects, and the usual places to write.
	for _, dir := range []string{"/dev", "/etc", "/proc", "/run", "/sys", "/tmp", "/var"} {
		layer.dir(dir)
	}
	for _, arg := range flags.Args() {
		host, image, ok := strings.Cut(arg, ":")
		if !ok || host == "" || !strings.HasPrefix(image, "/") {
			return fmt.Errorf("%q: want HOST:IMAGE with an absolute path in the image", arg)
		}
		if err := layer.tree(host, image); err != nil {
			return err
		}
	}
	for _, l := range links {
		layer.symlink(l[0], l[1])
	}

	img := image{
		Ref: *ref, Arch: *arch, Env: env,
		Entrypoint: strings.Fields(*entrypoint), Cmd: strings.Fields(*cmd),
	}
	return writeFile(*out, func(w io.Writer) error { return img.write(w, layer) })
}

// writeFile leaves either the complete file or what was there before.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name + ".tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := errors.Join(write(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
