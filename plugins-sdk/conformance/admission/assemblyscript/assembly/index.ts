export { ym_abi_1, ym_layout, ym_configure, ym_admit } from "./policy.gen";
