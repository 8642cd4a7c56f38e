export { ym_abi_1, ym_layout, ym_configure, ym_observe } from "./policy.gen";
