package apiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
)

const (
	tokenFile = "tokens.csv"
	keyFile   = "service-account.key"
)

// writeCredentials makes the administrator's token and the key that signs service account tokens.
func writeCredentials(dir string) (token string, err error) {
	token = rand.Text()
	line := fmt.Sprintf("%s,admin,admin,system:masters\n", token)
	if err := os.WriteFile(filepath.Join(dir, tokenFile), []byte(line), 0o600); err != nil {
		return "", err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return token, os.WriteFile(filepath.Join(dir, keyFile), block, 0o600)
}
