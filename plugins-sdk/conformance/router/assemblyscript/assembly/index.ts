export { ym_abi_1, ym_layout, ym_configure, ym_score } from "./policy.gen";
