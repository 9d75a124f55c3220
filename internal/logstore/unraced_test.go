//go:build !race

package logstore

const raced = false
