// Package model runs Llama-family transformers on the CPU.
package model
